# Every target sets up what it needs: a virtual environment with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RAY_STAMP := $(VENV)/.installed-ray
DOCS_STAMP := $(VENV)/.installed-docs
# Most of the tests' time is XLA's compiler's; small programs need not be fast ones: nothing is
# optimised, a program is one module of LLVM, and its fusions are not emitted by way of MLIR, where
# XLA can do without (jaxlib 0.12 ends the process at that flag).
QUICK_COMPILER = --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true \
	--xla_cpu_parallel_codegen_split_count=1 $(shell $(BIN)/python -c 'import jaxlib; \
	print("--xla_cpu_use_fusion_emitters=false" * (jaxlib.version.__version_info__ < (0, 12)))' 2>/dev/null)
# What learns at length, or is an example for users, compiles as they do.
LEARNING_TESTS := $(wildcard tests/algorithms/test_*_learning.py) \
	tests/algorithms/test_cem.py tests/algorithms/test_cma_es.py tests/algorithms/test_sac.py \
	tests/experiment/test_image_networks.py tests/test_examples.py tests/test_tutorial.py

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-pythons check docs wheel bench bench-peers clean

help: ## What there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP) ## Virtual environment, pinned dependencies, the package

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "adaptax needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(RAY_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[dev,ray,mlflow,trackio]'
	@touch $@

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

demo: $(STAMP) ## Meta-train, adapt and evaluate on MuJoCo in about two minutes; see runs/demo
	$(BIN)/adaptax train rl2-ppo half-cheetah-vel --run-dir runs/demo --overwrite
	$(BIN)/adaptax evaluate runs/demo --num-lanes 16
	$(BIN)/adaptax plot runs/demo
	$(BIN)/adaptax plot pretrained:point-goal --out runs/demo/point-goal.png

test: export XLA_FLAGS += $(QUICK_COMPILER)
test: $(STAMP) ## The tests, about ten minutes on two cores
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

# Suites whose physics is in the program have to give the same without a compiler for it.
HOST_TESTS := $(addprefix tests/envs/test_,locomotion.py half_cheetah.py single_task.py ant.py \
	humanoid.py walker_hopper_swimmer.py task_models.py)

test-slow: $(RAY_STAMP) ## Learning thresholds, variations, long runs, Ray, all trackers
	XLA_FLAGS="$$XLA_FLAGS $(QUICK_COMPILER)" \
		$(BIN)/python -m pytest -q -n 2 --dist loadfile -m slow $(LEARNING_TESTS:%=--ignore=%)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m slow $(LEARNING_TESTS)
	XLA_FLAGS="$$XLA_FLAGS $(QUICK_COMPILER)" ADAPTAX_PHYSICS=host \
		$(BIN)/python -m pytest -q -n 2 $(HOST_TESTS)

PYTHONS ?= python3.11 python3.12 python3.13
test-pythons: ## The tests with each of PYTHONS that there is, in environments of their own
	@for python in $(PYTHONS); do \
		version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || \
			{ echo "no $$python here"; continue; }; \
		$(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-$$version || exit 1; \
		.venv-$$version/bin/python -m pytest -q -m slow tests/test_first_iteration.py || exit 1; \
	done

check: $(STAMP) ## Lint, formatting, types, and the arrows between rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/properties/test_arrows.py

docs: $(DOCS_STAMP) ## Reference from the code, and the site in build/site, any warning an error
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

wheel: $(STAMP) ## A wheel for this platform, with MuJoCo's step compiled, in dist/
	$(BIN)/python -m adaptax.envs.physics.native
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist . \
		--config-settings=--build-option=--plat-name=$$($(BIN)/python -c \
		'import sysconfig; print(sysconfig.get_platform().replace("-", "_"))')
	rm adaptax/envs/physics/mj_step.so adaptax/envs/physics/mj_step.sha256

bench: $(STAMP) ## Speed, side by side
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/metaworld_speed.py

bench-peers: ## What benchmarks compare with, in .venv-peers
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements.txt

clean: ## Remove the environment and caches, not runs/
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .jax_cache build *.egg-info
