import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.spec import Continuous, Discrete
from adaptax.networks.flat import Flat
from adaptax.networks.heads import MLPPolicy

OBS = jax.random.normal(jax.random.key(1), (5, 3))


@pytest.mark.parametrize(("hidden_sizes", "size"), [((), 8), ((4,), 26)])
def test_its_size_is_that_of_all_parameters_together(hidden_sizes, size):
    flat = Flat(MLPPolicy(hidden_sizes, Discrete(2)), 3)
    assert flat.size == size
    assert flat.init(jax.random.key(0)).shape == (size,)


def test_it_computes_what_its_module_does():
    module = MLPPolicy((4,), Discrete(2))
    expected = module.apply(module.init(jax.random.key(0), OBS), OBS)
    flat = Flat(module, 3)
    found = flat.apply(flat.init(jax.random.key(0)), OBS)
    np.testing.assert_array_equal(found.logits, expected.logits)


def test_a_deviation_that_is_not_learned_is_no_parameter():
    flat = Flat(MLPPolicy((), Continuous(2), init_std=0.5, learn_std=False), 3)
    assert flat.size == 8
    distribution = flat.apply(jnp.ones(8), OBS)
    np.testing.assert_allclose(distribution.log_std, np.log(0.5), rtol=1e-6)
