"""What an actor of one's own may answer with, in every engine."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.algorithms.program import iteration_program
from adaptax.core.errors import EnvironmentFault
from adaptax.core.spec import Discrete, MultiDiscrete
from adaptax.envs.pools.pool import SlotFault, SlotNotFinite
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.sampling.actors import Memoryless
from adaptax.sampling.sampler import Sampler


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Constant(Memoryless):
    """Acts alike in every lane."""

    action: jax.Array

    def act(self, carry, obs, key):
        shape = (*obs.shape[:2], *self.action.shape)
        return jnp.broadcast_to(self.action, shape), carry, {}


def played(name: str, action, engine: str = "compiled", **settings):
    suite = make_suite(name, **settings)
    suite = replace(suite, engine=engine) if engine == "host" else suite
    sampler = Sampler(suite, suite.train, 0, "train")
    return sampler.steps(
        Constant(jnp.asarray(action)), suite.train.sample(np.random.default_rng(0), 2), 1, 5
    )


@pytest.mark.parametrize("engine", ["compiled", "host"])
@pytest.mark.parametrize(
    ("name", "action", "told"),
    [
        ("point-goal", np.zeros((), np.float32), r"shape .*; the environment takes \(2, .*2\)"),
        ("point-goal", np.zeros(1, np.float32), r"shape .*; the environment takes \(2, .*2\)"),
        ("gridworld", np.zeros(1, np.int32), r"shape .*; the environment takes \(2"),
        ("gridworld", np.float32(1.7), r"actions are float32; .* Discrete\(size=5\)"),
        ("point-goal", np.zeros(2, bool), r"actions are bool; .* Continuous\(size=2\)"),
    ],
)
def test_actions_of_another_shape_or_kind_are_one_line(name, action, told, engine):
    with pytest.raises(EnvironmentFault, match=told):
        played(name, action, engine)


@pytest.mark.parametrize("action", [-1, 5, 99])
def test_an_action_that_there_is_not_names_its_slot(action):
    with pytest.raises(SlotFault, match="the action is none of those that") as caught:
        played("gridworld", np.int32(action))
    assert not isinstance(caught.value, SlotNotFinite)
    assert (caught.value.slot, caught.value.step) == (0, 0)


def test_every_action_that_there_is_goes():
    for action in range(5):
        assert (played("gridworld", np.int32(action)).action == action).all()


def test_an_algorithm_that_chooses_what_there_is_not_is_told_in_the_program():
    suite = make_suite("cartpole")
    spec = replace(suite.spec, action=Discrete(7))  # a policy for more choices than there are
    algorithm = make_algorithm("a2c", spec, num_steps=64, hidden_sizes=(4,))
    state = algorithm.init(jax.random.key(0))
    sampler = Sampler(suite, suite.train, 0, "train")
    program = iteration_program(algorithm, state, sampler, beside_others=True)
    assert program is not None
    with pytest.raises(SlotFault, match="the action is none of those that"):
        program.run(algorithm, state, sampler, 1)


def test_parts_of_a_choice_are_looked_at_one_by_one():
    from adaptax.sampling.compiled_engine import _is_good

    good = _is_good(MultiDiscrete((2, 3)), "action", jnp.array([[1, 2], [2, 1], [0, -1], [0, 3]]))
    assert good.tolist() == [[True, True], [False, True], [True, False], [True, False]]
