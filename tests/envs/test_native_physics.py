"""The native call: made once, or one line that says why not; its bits, faults and errors."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from families import family, models, some_tasks, started, states

from adaptax.core.errors import EnvironmentFault
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.physics import native
from adaptax.envs.physics.body import Body
from adaptax.envs.physics.env import MujocoEnv
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.envs.pools.mujoco import MujocoPool
from adaptax.envs.suite import Suite
from adaptax.envs.task import Task, TaskList
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

needs_native = pytest.mark.skipif(native.problem() is not None, reason=str(native.problem()))

SLIDER = """
<mujoco>
  <size memory="{memory}"/>
  <worldbody>
    <body><joint name="slide" type="slide" axis="1 0 0"/><geom size="0.1"/></body>
    {more}
  </worldbody>
  <actuator><motor joint="slide" ctrlrange="-1 2" ctrllimited="true"/></actuator>
</mujoco>
"""


def slider(memory: str = "-1", more: str = "") -> Body:
    """A ball on a rail, controls in [-1, 2], and more bodies."""
    model = mujoco.MjModel.from_xml_string(SLIDER.format(memory=memory, more=more))
    return Body(
        spec=EnvSpec(2, Continuous(1), 20),
        model=model,
        frame_skip=3,
        task_params={},
        reset_noise=lambda key: (jnp.zeros(()), jnp.zeros(model.nv)),
        observation=lambda state: jnp.stack([state.qpos[0], state.qvel[0]]),
        outcome=lambda before, action, after, params: Step(reward=after.qpos[0], info={}),
    )


def suite_of(body: Body) -> Suite:
    env, task = MujocoEnv(body), TaskList("slide", [{}])
    return Suite("slide", body.spec, task, task, lambda n: CompiledPool(env, n), engine="compiled")


def rollout(suite: Suite, num_lanes: int = 2):
    sampler = Sampler(suite, suite.train, 0, "train")
    return sampler.episodes(UniformActor(suite.spec.action), sampler.sample_tasks(1), num_lanes, 1)


def in_fresh_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ADAPTAX_PHYSICS": "", **env},
        capture_output=True,
        text=True,
        timeout=1800,
    )


PROBLEM = "from adaptax.envs.physics import native; print(native.problem())"


@needs_native
def test_controls_are_actions_scaled_to_their_range():
    body = slider()
    seen = rollout(suite_of(body), 1)
    data = mujoco.MjData(body.model)
    for t, action in enumerate(np.asarray(seen.action)[0, 0]):
        data.ctrl[:] = 0.5 + 1.5 * action
        data.qacc_warmstart[:] = 0
        mujoco.mj_step(body.model, data, nstep=3)
        np.testing.assert_allclose(seen.next_obs[0, 0, t], [*data.qpos, *data.qvel], rtol=1e-6)


@needs_native
@pytest.mark.parametrize("name", ["half-cheetah-vel", "walker-params", "humanoid-dir"])
def test_a_step_inside_the_program_is_that_of_the_host(name):
    """State and observation bit for bit, reward to the rounding of one float32."""
    suite = family(name)
    inside, tasks = started(suite, 3), some_tasks(suite, 3)
    outside = MujocoPool(inside.env.body, 3, 1)
    outside.reset(np.arange(3), np.arange(3, dtype=np.uint32), tasks)
    np.testing.assert_array_equal(states(inside), states(outside))
    for model, other in zip(models(inside), models(outside), strict=True):
        np.testing.assert_array_equal(model.body_mass, other.body_mass)
    rng = np.random.default_rng(0)
    for _ in range(8):
        action = rng.uniform(-1.2, 1.2, (3, suite.spec.action.size)).astype(np.float32)
        one, other = (pool.step(np.arange(3), action) for pool in (inside, outside))
        np.testing.assert_array_equal(states(inside), states(outside))
        np.testing.assert_allclose(one.next_obs, other.next_obs, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(one.reward, other.reward, rtol=1e-6)
        np.testing.assert_array_equal(one.terminated, other.terminated)


@needs_native
def test_a_simulation_that_diverges_is_a_fault_that_names_its_lane(tmp_path, monkeypatch):
    """MuJoCo resets such a lane to its initial state and goes on with finite numbers."""
    monkeypatch.chdir(tmp_path)
    suite = suite_of(slider())
    sampler, actor = Sampler(suite, suite.train, 0, "train"), UniformActor(suite.spec.action)
    tasks = sampler.sample_tasks(1)
    sampler.steps(actor, tasks, 3, 4)
    saved = sampler.save()
    saved["pool"]["0"] = np.array(saved["pool"]["0"])
    saved["pool"]["0"].view(np.float64)[2, 1] = 1e12
    sampler.restore(saved)
    with pytest.raises(
        EnvironmentFault, match=r"slot 2, step 4, .*: the observation is not finite"
    ):
        sampler.steps(actor, tasks, 3, 4)
    assert not any(tmp_path.iterdir())  # where MuJoCo would have left MUJOCO_LOG.TXT


@needs_native
def test_an_error_of_mujoco_is_a_fault_and_the_process_goes_on(tmp_path, monkeypatch):
    """An arena of 32,000 bytes is too small for what falls on the floor."""
    monkeypatch.chdir(tmp_path)  # for MUJOCO_LOG.TXT
    heap = '<geom type="plane" size="9 9 1"/>' + "".join(
        f'<body pos="0 {i} 0.05"><freejoint/><geom size="0.1"/></body>' for i in range(5)
    )
    with pytest.raises(EnvironmentFault, match=r"MuJoCo: .*stack"):
        rollout(suite_of(slider("32000", heap)))
    assert np.isfinite(rollout(suite_of(slider())).reward).all()


@needs_native
def test_buffers_that_do_not_fit_the_model_are_refused():
    body = slider()
    simulations = native.Simulations(body.model)  # to be kept as long as its address is used
    with pytest.raises(jax.errors.JaxRuntimeError, match="buffers do not fit"):
        native.step(
            simulations.words,
            native.address_words(body.model._address),
            jnp.zeros(4, jnp.uint32),  # two numbers, where time, position and velocity belong
            jnp.zeros(1),
            num_sensors=0,
            num_substeps=1,
        )


def test_without_a_compiler_one_line_says_so(tmp_path):
    done = in_fresh_python(PROBLEM, PATH=str(tmp_path), CXX="", XDG_CACHE_HOME=str(tmp_path))
    assert done.stdout.strip() == "no C++ compiler was found (CXX, c++, g++, clang++)"


def test_a_compiler_that_fails_is_told_in_one_line(tmp_path):
    compiler = tmp_path / "broken-c++"
    compiler.write_text("#!/bin/sh\necho 'fatal error: no such header' >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = in_fresh_python(PROBLEM, CXX=str(compiler), XDG_CACHE_HOME=str(tmp_path))
    expected = f"{compiler} could not compile it: fatal error: no such header"
    assert done.stdout.strip() == expected
    assert not list((tmp_path / "adaptax").iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_to_is_told_in_one_line(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    done = in_fresh_python(PROBLEM, XDG_CACHE_HOME=str(tmp_path))
    assert "Permission denied" in done.stdout and len(done.stdout.splitlines()) == 1


def test_a_cache_that_is_no_folder_is_told_in_one_line(tmp_path):
    (tmp_path / "adaptax").write_text("")
    done = in_fresh_python(PROBLEM, XDG_CACHE_HOME=str(tmp_path))
    assert "File exists" in done.stdout and len(done.stdout.splitlines()) == 1


@needs_native
@pytest.mark.slow
def test_two_processes_at_once_make_one_library(tmp_path):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "ADAPTAX_PHYSICS": ""}
    both = [
        subprocess.Popen([sys.executable, "-c", PROBLEM], env=env, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=1800)[0] for process in both] == [b"None\n"] * 2
    left = {path.suffix: path for path in (tmp_path / "adaptax").iterdir()}
    assert left.keys() == {".so", ".sha256"} and native.is_as_written(left[".so"])


def changed_library(folder: Path, ours: str, instead: str) -> Path:
    """The library with other words in its source."""
    text = native.SOURCE.read_text()
    assert ours in text
    source, library = folder / "changed.cc", folder / "mj_step.so"
    source.write_text(text.replace(ours, instead))
    native.compile_library(native.compiler(), library, source)
    return library


@needs_native
def test_a_library_for_another_mujoco_is_not_taken(tmp_path):
    """One that a wheel carries, made for other versions than those that are installed."""
    packed = changed_library(tmp_path, "return mj_version();", "return 1;")
    with pytest.raises(native.NativeError, match="made for another version of MuJoCo"):
        native.load(packed, "adaptax_test_other")


@needs_native
def test_a_library_that_does_not_step_is_not_taken(tmp_path):
    packed = changed_library(tmp_path, "    mj_step(model, data);", "")
    with pytest.raises(native.NativeError, match="an empty world stood still"):
        native.load(packed, "adaptax_test_still", probe=True)


def test_the_host_can_be_asked_for():
    done = in_fresh_python(
        "import adaptax; s = adaptax.make_suite('swimmer-vel'); print(s.engine, '|', s.note)",
        ADAPTAX_PHYSICS="host",
    )
    assert done.stdout.strip().startswith("host | ")


def test_beside_an_accelerator_the_host_steps(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setenv("ADAPTAX_PHYSICS", "")
    native.problem.cache_clear()
    try:
        assert native.problem() == "JAX computes on gpu here"
    finally:
        native.problem.cache_clear()


@needs_native
def test_two_copies_of_an_env_do_not_share_their_simulations():
    first, second = MujocoEnv(slider()), MujocoEnv(slider())
    task = Task("slide", 0, {})
    one, other = (env.task_arrays(task)[0]["simulations"] for env in (first, second))
    assert not np.array_equal(one, other)


def library_in(folder: Path) -> Path:
    """The library in a cache of its own, made there if it is not as it was written."""
    done = in_fresh_python(PROBLEM, XDG_CACHE_HOME=str(folder))
    assert done.stdout.strip() == "None" and done.returncode == 0, done.stderr
    (library,) = (folder / "adaptax").glob("*.so")
    assert native.is_as_written(library)
    return library


@needs_native
@pytest.mark.slow
def test_a_library_that_is_damaged_or_another_is_made_anew(tmp_path):
    """Loaded, it would crash Python, or run what somebody has put there."""
    library = library_in(tmp_path)
    good = library.read_bytes()
    for bad in (good[: len(good) // 2], bytes(len(good)), b"", good[:-200] + bytes(200)):
        library.write_bytes(bad)
        assert not native.is_as_written(library)
    assert library_in(tmp_path).read_bytes()[:4] == b"\x7fELF"


@needs_native
def test_a_cache_in_which_others_may_write_is_not_used(tmp_path):
    (tmp_path / "adaptax").mkdir()
    (tmp_path / "adaptax").chmod(0o777)
    done = in_fresh_python(PROBLEM, XDG_CACHE_HOME=str(tmp_path))
    assert "a folder that others may write in" in done.stdout
    assert len(done.stdout.splitlines()) == 1 and not any((tmp_path / "adaptax").iterdir())
