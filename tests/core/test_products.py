"""Who multiplies matrices on a CPU."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
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


def layer_gradients(rows, outputs, *, networks=None, **settings):
    """Of a loss of a dense layer, with respect to inputs and weights; and of their squares."""
    layer = nn.Dense(outputs, **settings)
    inputs = jax.random.normal(jax.random.key(0), (*rows, 70))
    params = layer.init(jax.random.key(1), inputs)
    apply = layer.apply
    if networks is not None:
        inputs, params = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), (inputs, params))
        apply = jax.vmap(apply)

    def loss(params, inputs):
        return jnp.sum(jnp.sin(apply(params, inputs)))

    def squares(params, inputs):
        grads = jax.grad(loss, argnums=(0, 1))(params, inputs)
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(grads))

    of_loss = jax.grad(loss, argnums=(0, 1))(params, inputs)
    return of_loss, jax.grad(squares, argnums=(0, 1))(params, inputs)


@pytest.mark.parametrize(
    ("rows", "outputs", "networks"),
    [
        ((), 80, None),
        ((5,), 80, None),
        ((300,), 3, None),
        ((2, 150), 80, None),
        ((4000,), 80, None),
        ((300,), 80, 2),
    ],
)
def test_gradients_are_those_of_the_plain_layer(rows, outputs, networks):
    plain = layer_gradients(rows, outputs, networks=networks)
    ours = layer_gradients(rows, outputs, networks=networks, dot_general=products.dot_general)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(ours), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(b, a, atol=1e-4 * float(jnp.max(jnp.abs(a))))


@pytest.mark.parametrize(("rows", "transposed"), [(255, True), (256, False)])
def test_wide_products_of_gradients_have_nothing_to_transpose(rows, transposed):
    if jax.default_backend() != "cpu":
        pytest.skip("about CPUs")

    def loss(kernel, inputs):
        product = products.dot_general(inputs, kernel, (((1,), (0,)), ((), ())))
        return jnp.sum(jnp.sin(product))

    grads = jax.jit(jax.grad(loss, argnums=(0, 1)), compiler_options=products.EIGEN)
    text = grads.lower(jnp.ones((64, 64)), jnp.ones((rows, 64))).compile().as_text()
    dots = [line for line in text.splitlines() if " dot(" in line]
    assert len(dots) == 3
    plain = ["lhs_contracting_dims={1}, rhs_contracting_dims={0}" in line for line in dots]
    assert all(plain) != transposed
