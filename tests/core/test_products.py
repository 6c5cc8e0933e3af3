"""Who multiplies matrices on a CPU."""

import jax
import jax.numpy as jnp
import pytest

from adaptax.core import products

LIBRARY = "__ynn_fusion"


def compiled_text(options):
    program = jax.jit(lambda x, y: x @ y, compiler_options=options)
    return program.lower(jnp.ones((256, 256)), jnp.ones((256, 256))).compile().as_text()


def test_wide_products_are_not_given_away():
    if jax.default_backend() != "cpu":  # asked here: as a mark it would start JAX at collection
        pytest.skip("about CPUs")
    assert LIBRARY in compiled_text({})
    assert LIBRARY not in compiled_text(products.product_options(256))


def test_products_of_few_rows_are_compiled_as_ever():
    assert products.product_options(255) == {}


def test_an_option_that_this_jax_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setattr(products, "EIGEN", {"xla_cpu_no_such_option": ""})
    products._known.cache_clear()
    assert products.product_options(256) == {}
    products._known.cache_clear()
