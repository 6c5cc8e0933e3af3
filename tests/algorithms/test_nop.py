import jax
import pytest
from toys import fingerprint, point_suite, train_sampler

from adaptax.algorithms.search.nop import NOP, NOPConfig
from adaptax.core.errors import ConfigError
from adaptax.experiment.build import make_algorithm
from adaptax.networks.heads import MLPPolicy

SUITE = point_suite()


@pytest.mark.parametrize(("step", "num_steps"), [(True, 3 * 4 * 20), (False, 0)])
def test_nop_samples_what_it_is_asked_to_and_learns_nothing(step, num_steps):
    algorithm = make_algorithm("nop", SUITE.spec, num_lanes=4, step=step)
    sampler = train_sampler(SUITE)
    state = algorithm.init(jax.random.key(0))
    before = fingerprint(state)
    for _ in range(3):
        state, metrics = algorithm.iteration(state, sampler)
        assert metrics == {}
    assert sampler.num_steps == num_steps
    assert fingerprint(state) == before
    assert (sampler.statistics.take()["return"] is not None) == step


def test_networks_are_refused():
    with pytest.raises(ConfigError, match="nop acts at random and has no networks"):
        NOP(NOPConfig(), SUITE.spec, MLPPolicy((), SUITE.spec.action))
