import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import jax
from adaptax.core.devices import over_devices
import numpy as np
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.sampling.sampler import Sampler

SETTINGS = {"meta_batch_size": 4, "num_episodes": 2, "hidden_sizes": (4,)}
CASES = {
    "promp": {}, "promp, minibatches": {"num_minibatches": 2},
    # More iterations of conjugate gradients would make percents of what is rounding at first.
    "trpo-maml": {"trust_region": {"cg_iters": 2}},
}
suite = make_suite("point-corners")
sampler = Sampler(suite, suite.train, 0, "training")
for name in sys.argv[1:]:
    others = CASES[name]
    algorithm = make_algorithm(name.partition(",")[0], suite.spec, **SETTINGS, **others)
    state = algorithm.init(jax.random.key(0))
    data = jax.device_put(algorithm.collect(state, sampler))
    compiled, seen = jax.jit(algorithm.update), []

    def update(state, data):
        seen.append({len(x.devices()) for x in jax.tree.leaves((state, data))})
        return compiled(state, data)

    one, two = update(state, data)[0], over_devices(update, state, data)[0]
    assert seen == [{1}, {2}], seen
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert b.devices() == {jax.devices()[0]}
        if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=name)
    moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (state.params, two.params)))]
    assert max(moved) > 1e-4, moved

over_devices(lambda shared, parts: seen.append(parts.devices()), 0, jax.numpy.ones(3))
assert seen[-1] == {jax.devices()[0]}  # three parts, two devices: all on one
"""


COUNT = """
import jax
from adaptax.core.devices import make_every_core_a_device
make_every_core_a_device()
print(len(jax.devices()))
make_every_core_a_device()  # too late, and says nothing
"""


def run(program: str, *arguments: str, **variables: str) -> str:
    others = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=others | variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_updates_on_two_devices_are_those_on_one():
    run(PROGRAM, "promp", JAX_NUM_CPU_DEVICES="2")


@pytest.mark.slow
def test_so_are_those_by_minibatches_and_those_of_a_trust_region():
    run(PROGRAM, "promp, minibatches", "trpo-maml", JAX_NUM_CPU_DEVICES="2")


def test_every_core_is_a_device_unless_the_environment_says_how_many_there_are():
    assert int(run(COUNT)) == len(os.sched_getaffinity(0))
    assert int(run(COUNT, JAX_NUM_CPU_DEVICES="3")) == 3
