"""Nothing is compiled after the second iteration."""

from __future__ import annotations

import jax
import pytest
from entries import quick_for
from toys import EVALUATION, point_suite, small_agent

from adaptax.experiment.trainer import Trainer, TrainerConfig

COMPILATION = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled():
    """What JAX has compiled so far, whether or not the cache on disk had it."""
    events: list[str] = []

    def listen(event: str, duration: float, **about) -> None:
        if event == COMPILATION:
            events.append(about.get("fun_name", ""))

    jax.clear_caches()  # what another test compiled would count as compiled here
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@quick_for("ppo", "sac")
def test_nothing_is_compiled_after_the_second_iteration(entry, tmp_path, compiled):
    suite = point_suite(entry)
    config = TrainerConfig(
        str(tmp_path / "run"),
        num_iterations=4,
        evaluation_interval=1,
        snapshot_interval=1,
        evaluation=EVALUATION,
        quiet=True,
    )
    algorithm, marks = small_agent(entry, suite), []
    iterate = algorithm.iteration

    def iteration(*args):
        marks.append(len(compiled))
        return iterate(*args)

    algorithm.iteration = iteration
    Trainer(config, algorithm, suite).run()
    assert marks[1] > 0
    assert compiled[marks[2] :] == []
