from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
from counting import Counting, Forgiving, begun, step

from adaptax.core.errors import ConfigError, EnvironmentFault
from adaptax.envs.placement import placed
from adaptax.envs.pools.gym import GymPool
from adaptax.envs.pools.ray_crew import RayCrew, connected
from adaptax.envs.pools.remote_fault import RemoteTraceback
from adaptax.envs.pools.workers import WorkerPool
from adaptax.envs.suites.gym import gym_spec, gym_suite
from adaptax.envs.task import Task
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

pytestmark = pytest.mark.slow
LANES, HORIZON = 4, 6


def new_pool(num_slots: int, make_env=Counting, num_actors: int = 2, **settings) -> WorkerPool:
    """A pool with actors of its own."""
    spec = gym_spec(Forgiving if make_env is Forgiving else Counting, 9)
    crew = RayCrew(num_actors, **settings)
    return WorkerPool(partial(GymPool, make_env, spec), spec, crew, num_slots)


def started(*tasks: dict) -> WorkerPool:
    """A pool with an episode begun in as many slots as there are tasks."""
    return begun(new_pool(len(tasks)), *tasks)


def free_cpus(ray) -> float:
    """CPUs of the cluster that no actor has, once those of ended actors are given back."""
    deadline = time.monotonic() + 120
    while True:
        gc.collect()
        free = ray.available_resources().get("CPU", 0.0)
        if free == 2.0 or time.monotonic() > deadline:
            return free
        time.sleep(0.2)


def rollouts(train: list[dict], make_env=Counting, num_ray_actors: int = 0):
    """Whole episodes, then steps before and after a restore in mid-episode."""
    family = gym_suite("s", make_env, train=train, horizon=HORIZON, num_ray_actors=num_ray_actors)
    actor, tasks = UniformActor(family.spec.action), family.train.tasks
    sampler = Sampler(family, family.train, 0, "train")
    found = [sampler.episodes(actor, tasks, LANES, 2)]
    found += [sampler.steps(actor, tasks, LANES, 7) for _ in range(3)]
    sampler.close()
    return found


def assert_same(one, other) -> None:
    for a, b in zip(one, other, strict=True):
        for name, value in vars(a).items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(value, getattr(b, name), err_msg=name)


@pytest.mark.parametrize("kill_at", [1, 5])
def test_a_lost_actors_lanes_are_run_again_and_the_data_are_the_same(local_ray, tmp_path, kill_at):
    lost = rollouts([{}, {"kill_at": kill_at, "once": str(tmp_path / "mark")}], num_ray_actors=2)
    assert (tmp_path / "mark").exists()
    assert_same(lost, rollouts([{}, {}]))


def test_an_actor_lost_in_mid_episode_goes_on_from_its_state(local_ray, tmp_path):
    """The mark is made after the first call, so that the actor dies in one that began midway."""
    mark = tmp_path / "mark"
    mark.touch()
    family = gym_suite("s", Counting, train=[{"kill_at": 4, "once": str(mark)}], horizon=9)
    actor, tasks = UniformActor(family.spec.action), family.train.tasks
    samplers = [Sampler(f, f.train, 0, "train") for f in (family, placed(family, num_ray_actors=2))]
    for sampler in samplers:
        sampler.steps(actor, tasks, 2, 2)
    expected = samplers[0].steps(actor, tasks, 2, 4)
    mark.unlink()
    assert_same([samplers[1].steps(actor, tasks, 2, 4)], [expected])
    assert mark.exists()
    for sampler in samplers:
        sampler.close()


def kill(pool: WorkerPool, actor: int, ray) -> None:
    """Kill an actor that has nothing to do, and wait until it is known to be dead."""
    died = pool._crew.actors[actor]
    os.kill(ray.get(died.call.remote(os.getpid)), signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        while True:
            ray.get(died.call.remote(os.getpid))


def test_an_actor_lost_between_calls_is_replaced_in_a_new_pool(local_ray):
    family = gym_suite("s", Counting, horizon=HORIZON, num_ray_actors=2)
    first = family.make_pool(2)
    kill(first, 1, local_ray)
    second = begun(family.make_pool(4), *[{}] * 4)
    alone = begun(GymPool(Counting, family.spec, 4), *[{}] * 4)
    np.testing.assert_array_equal(step(second, 4).next_obs, step(alone, 4).next_obs)
    for pool in (first, second):
        pool.close()


def test_an_actor_that_is_lost_again_and_again_is_an_error(local_ray):
    with pytest.raises(EnvironmentFault, match=r"^Ray actor 1 .*: it was lost, 3 times"):
        step(started({}, {}, {}, {"kill_at": 1}), 4)
    assert free_cpus(local_ray) == 2.0


def test_an_actor_that_hangs_is_an_error_and_ends(local_ray):
    spec = gym_spec(Counting, 9)
    pool = WorkerPool(partial(GymPool, Counting, spec), spec, RayCrew(2, timeout=30.0), 2)
    begun(pool, {}, {"hang_at": 1})
    pool._crew.timeout = 2.0
    with pytest.raises(EnvironmentFault, match=r"Ray actor 1 .* has not answered within 2 s"):
        pool.step(np.array([1]), np.zeros((1, 2), np.float32))
    assert free_cpus(local_ray) == 2.0


def test_slot_by_slot_it_equals_the_pool_in_process(local_ray):
    pools = [GymPool(Forgiving, gym_spec(Forgiving, 9), 5), new_pool(5, Forgiving)]
    tasks = [Task("t", i, {"drift": 0.1 * i}) for i in range(5)]
    rng = np.random.default_rng(0)
    order = np.array([3, 0, 4, 1, 2])
    starts = [pool.reset(order, order.astype(np.uint32), tasks) for pool in pools]
    np.testing.assert_array_equal(*starts)
    running = order
    for _ in range(9):
        actions = rng.uniform(-1, 1, (len(running), 2)).astype(np.float32)
        one, other = (pool.step(running, actions) for pool in pools)
        for name in ("next_obs", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(other, name), getattr(one, name))
        np.testing.assert_array_equal(other.info["success"], one.info["success"])
        running = running[~(one.terminated | one.truncated)]
        if not len(running):
            break
    pools[1].close()


def test_an_exception_comes_back_with_its_traceback(local_ray):
    pool = started({}, {}, {}, {"raise_at": 2})
    step(pool, 4)
    with pytest.raises(EnvironmentFault, match=r"^slot 3, step 1, task 't3': .*motor") as fault:
        step(pool, 4)
    assert "\n" not in str(fault.value)
    assert isinstance(fault.value.__cause__, RemoteTraceback)
    assert 'raise RuntimeError("motor on fire")' in str(fault.value.__cause__)
    with pytest.raises(EnvironmentFault, match="this pool is closed"):
        step(pool, 4)


def broken() -> Counting:
    raise OSError("no display")


def test_an_environment_that_cannot_be_made_is_an_error(local_ray):
    with pytest.raises(
        EnvironmentFault, match=r"Ray actor 0 \(slots 0 to 1\): an env.* made: OSError"
    ):
        new_pool(2, broken, num_actors=1)


def test_an_environment_that_is_not_installed_over_there_is_an_error(local_ray, tmp_path):
    (tmp_path / "only_here.py").write_text(
        "from counting import Counting\nclass Here(Counting): ..."
    )
    sys.path.insert(0, str(tmp_path))
    make_env = importlib.import_module("only_here").Here
    sys.path.remove(str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"cannot begin: .*No module named 'only_here'") as e:
        new_pool(2, make_env)
    assert "\n" not in str(e.value)


def test_an_environment_that_cannot_be_sent_is_an_error(local_ray):
    with pytest.raises(ConfigError, match="cannot be sent to a Ray actor: TypeError") as error:
        new_pool(2, partial(Counting, threading.Lock()))
    assert "\n" not in str(error.value)


def test_more_actors_than_the_cluster_has_room_for_are_an_error(local_ray):
    with pytest.raises(EnvironmentFault, match=r"Ray actor . .*the cluster has 2 CPUs, and each"):
        new_pool(3, num_actors=3, start_timeout=10.0)
    assert free_cpus(local_ray) == 2.0


def test_pools_share_actors_and_their_loss(local_ray, tmp_path):
    """With actors of its own, the second pool would wait for CPUs; one loss is a loss to both."""
    mark = tmp_path / "mark"
    mark.touch()
    train = [{"kill_at": 4, "once": str(mark)}]
    family = gym_suite("s", Counting, train=train, horizon=9, num_ray_actors=2)
    actor, tasks = UniformActor(family.spec.action), family.train.tasks
    first, second, other = (Sampler(family, family.train, 0, "train") for _ in range(3))
    for sampler in (first, second):
        sampler.steps(actor, tasks, 2, 2)
    mark.unlink()
    lost = first.steps(actor, tasks, 2, 4)
    assert mark.exists()
    first.close()
    assert_same([second.steps(actor, tasks, 2, 4)], [lost])
    second.close()
    other.steps(actor, tasks, 2, 2)
    assert_same([other.steps(actor, tasks, 2, 4)], [lost])
    other.close()
    assert free_cpus(local_ray) == 2.0


def test_a_pool_that_is_forgotten_ends_its_actors(local_ray):
    pool = started({}, {})
    del pool
    assert free_cpus(local_ray) == 2.0


def test_without_ray_there_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"^Ray is not installed: pip install 'adaptax\[ray\]'$"):
        new_pool(2)


LISTENING = """
import contextlib
import psutil
from adaptax.envs.pools.ray_crew import connected

ray = connected()
processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
found = []
for p in processes:
    with contextlib.suppress(psutil.Error):  # it may have ended
        found += [c.laddr.ip for c in p.net_connections("inet") if c.status == "LISTEN"]
print(*sorted(set(found)))
ray.shutdown()
"""


def test_a_cluster_that_is_started_here_listens_on_this_machine_only(tmp_path):
    ours = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    env = {**ours, "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "local"}
    done = subprocess.run(
        [sys.executable, "-c", LISTENING], env=env, capture_output=True, text=True, timeout=120
    )
    assert set(done.stdout.split()) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, done.stderr
    assert done.stdout.split()


def test_a_cluster_that_does_not_answer_is_one_line(monkeypatch):
    ray = importlib.import_module("ray")

    def init(where, **_):
        raise ConnectionError(f"nobody at {where}")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(ConfigError, match=r"^no Ray cluster answers at RAY_ADDRESS '10"):
        connected()
