from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import heap
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
import pytest
from counting import (
    Counting,
    Random,
    begun,
    cache_events,
    listen_to_cache,
    step,
    xla_threads,
)
from os_processes import command, gone

from adaptax.core.errors import ConfigError, EnvironmentFault
from adaptax.envs.pools.gym import GymPool
from adaptax.envs.pools.process_crew import ProcessCrew, Worker
from adaptax.envs.pools.remote_fault import RemoteTraceback
from adaptax.envs.pools.workers import Host, WorkerPool
from adaptax.envs.suites import gym
from adaptax.envs.suites.gym import gym_spec, gym_suite
from adaptax.envs.task import Task
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

TESTS = Path(__file__).parents[1]
SEARCHED = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
NUM_SLOTS = 5
EVERY = np.arange(NUM_SLOTS)
FIELDS = ("next_obs", "reward", "terminated", "truncated")


def maker(make_env=Counting, horizon: int = 9, **params):
    """What makes an in-process pool, and its spec."""
    spec = gym_spec(make_env, horizon, params=params)
    return partial(GymPool, make_env, spec), spec


def in_workers(make_pool, spec, num_workers: int, num_slots: int, **settings) -> WorkerPool:
    """A pool with workers of its own."""
    return WorkerPool(make_pool, spec, ProcessCrew(num_workers, **settings), num_slots)


def started(num_workers: int, *tasks: dict) -> WorkerPool:
    """A pool with an episode begun in as many slots as there are tasks."""
    make_pool, spec = maker()
    return begun(in_workers(make_pool, spec, num_workers, len(tasks)), *tasks)


def children() -> set[int]:
    """Processes that this one has started, but for multiprocessing's own tracker."""
    every = psutil.Process().children(recursive=True)
    return {p.pid for p in every if "resource_tracker" not in command(p) and p.is_running()}


def segments() -> set[Any]:
    """Blocks of multiprocessing's heap in use; it keeps small arenas for the next who asks."""
    arenas = heap.BufferWrapper._heap._allocated_blocks.items()
    return {(id(arena), block) for arena, blocks in arenas for block in blocks}


@pytest.fixture(autouse=True)
def new_children():
    """Processes started since the test began; it must leave none, and no shared memory."""
    gc.collect()
    old_children, old_segments = children(), segments()
    yield lambda: children() - old_children
    gc.collect()
    assert children() <= old_children
    assert segments() <= old_segments


@pytest.fixture(scope="module")
def pools():
    """A pool in this process, and the same with 1, 2 and 3 workers."""
    make_pool, spec = maker(Random, drift=0.0)
    workers = [in_workers(make_pool, spec, n, NUM_SLOTS) for n in (1, 2, 3)]
    yield [make_pool(NUM_SLOTS), *workers]
    for pool in workers:
        pool.close()


def drifts() -> list[Task]:
    return [Task(f"drift-{i}", i, {"drift": 0.1 * i}) for i in EVERY]


def play(pools, num_steps: int, seed: int = 0) -> np.ndarray:
    """The same random actions in all pools, which must agree to the last bit; returns of all."""
    rng, tasks = np.random.default_rng(seed), drifts()
    seeds = rng.integers(2**32, size=(num_steps, NUM_SLOTS), dtype=np.uint32)
    starts = [pool.reset(EVERY, seeds[0], tasks) for pool in pools]
    assert all(np.array_equal(starts[0], start) for start in starts)
    total = np.zeros(NUM_SLOTS)
    for t in range(num_steps):
        actions = rng.uniform(-1, 1, (NUM_SLOTS, 2)).astype(np.float32)
        results = [pool.step(EVERY, actions) for pool in pools]
        answers = [{name: getattr(r, name) for name in FIELDS} | r.info for r in results]
        for answer in answers:
            assert answer.keys() == answers[0].keys() == {*FIELDS, "success"}
            for name, x in answer.items():
                np.testing.assert_array_equal(x, answers[0][name])
                assert x.dtype == answers[0][name].dtype
        total += results[0].reward
        over = np.flatnonzero(results[0].terminated | results[0].truncated)
        if len(over):
            for pool in pools:
                pool.reset(over, seeds[t, over], [tasks[i] for i in over])
    return total


def test_one_two_and_three_workers_equal_in_process(pools):
    total = play(pools, num_steps=3 * 9)
    assert len(np.unique(total)) == NUM_SLOTS


def test_what_one_pool_saved_in_mid_episode_another_continues(pools):
    play(pools, num_steps=5, seed=1)
    saved = [pool.save() for pool in pools]
    for other in saved[1:]:
        assert all(np.array_equal(other[name], saved[0][name]) for name in saved[0])
    running = np.flatnonzero(saved[0]["running"])
    actions = np.full((len(running), 2), 0.5, np.float32)
    expected = pools[0].step(running, actions)
    play(pools[1:], num_steps=3, seed=2)
    for pool, state in zip(pools[1:], [saved[2], saved[0], saved[1]], strict=True):
        pool.restore(state, drifts())
        result = pool.step(running, actions)
        np.testing.assert_array_equal(result.next_obs, expected.next_obs)
        np.testing.assert_array_equal(result.reward, expected.reward)


def test_stepping_some_slots_leaves_the_others():
    pool = started(2, {}, {}, {})
    pool.step(np.array([2]), np.zeros((1, 2), np.float32))
    pool.step(np.array([2, 0]), np.zeros((2, 2), np.float32))
    np.testing.assert_array_equal(step(pool, 3).next_obs[:, 0], [2, 1, 3])
    pool.close()


@pytest.mark.slow
def test_results_are_copies_of_shared_memory():
    pool = started(1, {}, {})
    first = step(pool, 2)
    step(pool, 2)
    np.testing.assert_array_equal(first.next_obs, [[1], [1]])
    pool.close()


@pytest.mark.slow
def test_more_workers_than_slots_are_not_started():
    pool = started(7, {}, {})
    assert len(pool._crew.workers) == 2
    pool.close()


def test_an_exception_comes_back_with_its_traceback_at_once():
    pool = started(2, {}, {}, {}, {"raise_at": 2})
    step(pool, 4)
    begun = time.perf_counter()
    with pytest.raises(EnvironmentFault, match=r"^slot 3, step 1, task 't3': .*motor") as fault:
        step(pool, 4)
    assert time.perf_counter() - begun < 60
    assert "\n" not in str(fault.value)
    cause = fault.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert 'raise RuntimeError("motor on fire")' in str(cause)


@pytest.mark.slow
def test_an_exception_does_not_wait_for_a_slow_worker():
    pool = started(2, {"hang_at": 1}, {"raise_at": 1})
    begun = time.perf_counter()
    with pytest.raises(EnvironmentFault, match=r"slot 1, step 0, task 't1': .*motor"):
        step(pool, 2)
    assert time.perf_counter() - begun < 60


def test_a_nan_names_slot_step_and_task():
    pool = started(2, {}, {}, {"nan_at": 1})
    with pytest.raises(EnvironmentFault, match=r"slot 2, step 0, task 't2': .*not finite"):
        step(pool, 3)


def test_a_fault_ends_the_pool(new_children):
    pool = started(2, {"raise_at": 1}, {})
    with pytest.raises(EnvironmentFault, match="motor"):
        step(pool, 2)
    assert new_children() == set()
    with pytest.raises(EnvironmentFault, match="this pool is closed"):
        step(pool, 2)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("kill_at", r"worker 1 \(slots 2 to 2\): the process was killed by SIGKILL"),
        ("exit_at", r"worker 1 \(slots 2 to 2\): the process ended with code 3"),
    ],
)
def test_a_worker_that_dies_is_an_error(event, message):
    pool = started(2, {}, {}, {event: 1})
    with pytest.raises(EnvironmentFault, match=message):
        step(pool, 3)


def test_a_worker_killed_between_two_steps_is_an_error():
    pool = started(2, {}, {})
    victim = pool._crew.workers[0].process
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    with pytest.raises(EnvironmentFault, match=r"worker 0 \(slots 0 to 0\): .* SIGKILL"):
        step(pool, 2)


def test_a_worker_that_hangs_is_an_error():
    pool = started(2, {}, {"hang_at": 1})
    pool._crew.timeout = 1.0
    with pytest.raises(EnvironmentFault, match=r"worker 1 .* not taken a step within 1 s"):
        pool.step(np.array([1]), np.zeros((1, 2), np.float32))


def test_every_environment_that_is_made_or_reset_is_a_sign_of_life():
    told = []
    host, slots = Host(lambda: told.append(1)), np.arange(3)

    def make_and_reset():
        assert host.make(0, maker()[0], slots, None, [None] * 3) == (None, None)
        made = len(told)
        job = (
            lambda share, *args: share.reset(*args),
            (slots, slots.astype(np.uint32), drifts()[:3]),
        )
        host.run(0, *job)
        return made, len(told) - made

    made, reset = copy_context().run(make_and_reset)
    assert made == 3 and reset >= 3


def test_actions_of_a_wrong_size_are_refused_and_the_pool_goes_on():
    pool = started(1, {}, {})
    with pytest.raises(EnvironmentFault, match=r"shape \(2, 3\).* takes \(2, 2\)"):
        pool.step(np.arange(2), np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(step(pool, 2).next_obs, [[1], [1]])
    pool.close()


def test_a_reset_needs_a_seed_and_a_task_for_every_slot(pools):
    for pool in pools[:2]:  # in this process, and with a worker
        for seeds, tasks in ((EVERY[:4], drifts()), (EVERY, drifts()[:4])):
            with pytest.raises(EnvironmentFault, match=r"5 slots was given \d seeds and \d tasks"):
                pool.reset(EVERY, seeds.astype(np.uint32), tasks)


def test_an_environment_that_cannot_be_pickled_is_one_line_before_anything_starts(new_children):
    class Local(Counting):
        pass

    for make_env in (Local, lambda: Counting()):
        with pytest.raises(
            ConfigError, match=r"cannot be sent to a worker process: .*top level"
        ) as e:
            gym_suite("local", make_env, horizon=5, num_workers=2)
        assert "\n" not in str(e.value)
    assert new_children() == set()


def broken() -> Counting:
    raise OSError("no display")


def test_an_environment_that_cannot_be_made_is_an_error():
    _, spec = maker()
    with pytest.raises(
        EnvironmentFault,
        match=r"worker 0 \(slots 0 to 1\): an environment cannot be made: OSError: no display",
    ):
        in_workers(partial(GymPool, broken, spec), spec, 1, 2)


@pytest.mark.parametrize(("num_workers", "num_slots"), [(0, 2), (2, 0)])
def test_sizes_must_be_positive(num_workers, num_slots):
    make_pool, spec = maker()
    with pytest.raises(ConfigError, match="must be greater than 0, not 0"):
        in_workers(make_pool, spec, num_workers, num_slots)


def test_close_ends_workers_and_can_be_called_again(new_children):
    pool = started(2, {}, {})
    assert len(new_children()) == 2
    pool.close()
    assert new_children() == set()
    pool.close()


@pytest.mark.slow
def test_a_pool_that_is_forgotten_ends_its_workers(new_children):
    pool = started(2, {}, {})
    assert len(new_children()) == 2
    del pool
    gc.collect()
    assert new_children() == set()


def test_an_interrupt_in_mid_step_ends_the_workers(new_children, monkeypatch):
    monkeypatch.setattr("adaptax.envs.pools.process_crew.GRACE_SECONDS", 120.0)
    pool = started(1, {"hang_at": 1})
    worker = pool._crew.workers[0]
    num_steps = worker.num_steps.value

    def interrupt():
        while worker.owes is None or worker.num_steps.value == num_steps:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    threading.Thread(target=interrupt, daemon=True).start()
    asked = time.perf_counter()
    try:
        with pytest.raises(KeyboardInterrupt):
            step(pool, 1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.perf_counter() - asked < 60  # it is not waited for
    assert new_children() == set()


def sampler(crew: ProcessCrew, params: dict, horizon: int = 9) -> Sampler:
    """Of one task in workers of `crew`."""
    family = gym_suite("s", Counting, train=[params], horizon=horizon)
    pool = partial(WorkerPool, family.make_pool, family.spec, crew)
    family = replace(family, make_pool=pool, engine="workers")
    return Sampler(family, family.train, 0, "train")


def steps(sampler: Sampler, num_steps: int, num_lanes: int = 2) -> Any:
    actor = UniformActor(sampler.spec.action)
    return sampler.steps(actor, sampler.tasks.tasks, num_lanes, num_steps)


@pytest.mark.slow
def test_a_worker_is_told_as_often_for_many_steps_as_for_one(monkeypatch):
    told = []
    ask = Worker.ask
    monkeypatch.setattr(Worker, "ask", lambda self, *job: (told.append(job[1]), ask(self, *job)))
    crew = ProcessCrew(2)
    mine = sampler(crew, {})
    steps(mine, 1)
    told.clear()
    steps(mine, 1)
    assert told == ["run", "run"]
    steps(mine, 40)
    assert told == ["run"] * 4
    mine.close()


@pytest.mark.slow
def test_a_fault_in_one_pool_leaves_another_where_it_stood(new_children):
    crew, alone = ProcessCrew(2), ProcessCrew(2)
    broken, other, expected = (
        sampler(c, p) for c, p in zip((crew, crew, alone), ({"raise_at": 5}, {}, {}), strict=True)
    )
    steps(other, 3), steps(expected, 3)
    with pytest.raises(EnvironmentFault, match="motor"):
        steps(broken, 9)
    np.testing.assert_array_equal(steps(other, 4).obs, steps(expected, 4).obs)
    assert len(new_children()) == 4
    for each in (other, expected, broken):
        each.close()


def test_a_pool_that_is_closed_in_the_midst_of_anothers_call_leaves_that_alone(monkeypatch):
    """As a pool that nobody holds any more is, whenever Python collects its garbage."""
    make_pool, spec = maker()
    crew = ProcessCrew(1)
    forgotten, pool = (WorkerPool(make_pool, spec, crew, 1) for _ in range(2))
    begun(pool, {})
    wait = crew.wait
    monkeypatch.setattr(crew, "wait", lambda pending: (forgotten.close(), wait(pending))[1])
    np.testing.assert_array_equal(step(pool, 1).next_obs, [[1]])
    pool.close()


@pytest.mark.slow
def test_a_worker_that_hangs_in_a_long_call_is_an_error_and_one_that_does_not_is_none():
    crew = ProcessCrew(1)
    slow = sampler(crew, {"sleep": 0.05}, horizon=99)
    steps(slow, 1, num_lanes=1)  # the policy compiles
    crew.timeout, begun = 1.0, time.perf_counter()
    steps(slow, 30, num_lanes=1)
    assert time.perf_counter() - begun > crew.timeout
    slow.close()
    hanging = sampler(crew, {"hang_at": 3})
    with pytest.raises(EnvironmentFault, match=r"worker 0 .* not taken a step within 1 s"):
        steps(hanging, 9, num_lanes=1)


def test_a_policy_that_cannot_be_sent_is_one_line(new_children):
    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class Local(UniformActor):
        """Defined where no worker can import it."""

    mine = sampler(ProcessCrew(1), {})
    with pytest.raises(ConfigError, match=r"policy cannot be sent to a worker .*top level") as e:
        mine.steps(Local(mine.spec.action), mine.tasks.tasks, 1, 1)
    assert "\n" not in str(e.value)
    assert new_children() == set()


@pytest.mark.slow
def test_a_workers_policy_has_one_thread_and_the_parents_precision(monkeypatch):
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES")  # for tests: a thread for each of two devices
    make_pool, spec = maker()
    pool = in_workers(make_pool, spec, 1, 1)
    with jax.enable_x64(True):
        other = in_workers(make_pool, spec, 1, 1)
    assert pool.run(xla_threads) == [(1, "float32")]
    assert other.run(xla_threads) == [(1, "float64")]
    pool.close()
    other.close()


@pytest.mark.slow
def test_a_second_start_of_a_worker_compiles_nothing_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    told = []
    for _ in range(2):
        mine = sampler(ProcessCrew(1), {})
        mine._pool(2).run(listen_to_cache)
        steps(mine, 3)
        told += mine._pool(2).run(cache_events)
        mine.close()
    assert "misses" in told[0]
    assert set(told[1]) == {"hits"}


OWNER = """
    import os, signal, sys, time
    from functools import partial
    import numpy as np
    from counting import PLAIN, Counting
    from adaptax.envs.pools.gym import GymPool
    from adaptax.envs.pools.process_crew import ProcessCrew
    from adaptax.envs.pools.workers import Host, WorkerPool
    from adaptax.envs.suites.gym import gym_spec

    if __name__ == "__main__":
        spec = gym_spec(Counting, 9)
        pool = WorkerPool(partial(GymPool, Counting, spec), spec, ProcessCrew(2), 2)
        pool.reset(np.arange(2), np.zeros(2, np.uint32), [PLAIN] * 2)
        print(*(worker.process.pid for worker in pool._crew.workers.values()), flush=True)
        {ending}
"""
ENDINGS = {
    "end of the program": ("pass", 0),
    "exception": ("raise ValueError('own mistake')", 1),
    "sys.exit": ("sys.exit(5)", 5),
    "kill -9": ("os.kill(os.getpid(), signal.SIGKILL)", -9),
    "kill -9 in mid-step": (
        "signal.setitimer(signal.ITIMER_REAL, 0.5); "
        "signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL)); "
        "task = type(PLAIN)('hangs', 0, {'hang_at': 1}); "
        "pool.reset(np.arange(2), np.zeros(2, np.uint32), [task] * 2); "
        "pool.step(np.arange(2), np.zeros((2, 2), np.float32))",
        -9,
    ),
}


QUICK_ENDINGS = {"kill -9 in mid-step"}


@pytest.mark.parametrize(
    "ending",
    [pytest.param(x, marks=() if x in QUICK_ENDINGS else pytest.mark.slow) for x in ENDINGS],
)
def test_workers_end_with_their_parent(ending, tmp_path):
    code, expected = ENDINGS[ending]
    script = tmp_path / "owner.py"
    script.write_text(textwrap.dedent(OWNER).replace("{ending}", code))
    env = {**os.environ, "PYTHONPATH": SEARCHED}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=env)
    assert done.returncode == expected, done.stderr
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 2
    assert gone(workers)
    assert "leaked" not in done.stderr


@pytest.mark.slow
def test_ctrl_c_goes_to_the_parent_alone(tmp_path):
    wait = (
        "signal.signal(signal.SIGINT, lambda *_: None); os.killpg(0, signal.SIGINT); "
        "time.sleep(0.5); "
        "print(*pool.step(np.arange(2), np.zeros((2, 2), np.float32)).next_obs[:, 0])"
    )
    script = tmp_path / "owner.py"
    script.write_text(textwrap.dedent(OWNER).replace("{ending}", wait))
    env = {**os.environ, "PYTHONPATH": SEARCHED}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=env, start_new_session=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "1.0 1.0"
    assert done.stderr == ""


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    script = tmp_path / "owner.py"
    text = textwrap.dedent(OWNER).replace("{ending}", "pass")
    script.write_text(text.replace('if __name__ == "__main__":', "if True:"))
    env = {**os.environ, "PYTHONPATH": SEARCHED}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=env)
    assert done.returncode == 1
    assert "at its start; a script that starts workers does so under `if __name__" in done.stderr


class HangsAtOnce(Counting):
    def reset(self, *, seed=None, options=None):
        time.sleep(600)


class KilledAtOnce(Counting):
    def reset(self, *, seed=None, options=None):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("make_env", "seconds", "message"),
    [
        (HangsAtOnce, 1.0, r"^a trial step of 's': a worker process has not answered within 1 s$"),
        (KilledAtOnce, 60.0, r"^a trial step of 's': in a worker process, .* killed by SIGKILL$"),
    ],
)
def test_a_trial_step_that_hangs_or_kills_is_the_workers_own(
    monkeypatch, make_env, seconds, message
):
    monkeypatch.setattr(gym, "TRIAL_SECONDS", seconds)
    with pytest.raises(EnvironmentFault, match=message):
        gym_suite("s", make_env, horizon=5, num_workers=1)
