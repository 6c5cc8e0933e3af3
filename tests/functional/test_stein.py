import jax
import jax.numpy as jnp
import numpy as np

from adaptax.functional.stein import rbf_kernel, spread, stein_direction

THREE = jnp.array([[0.0], [1.0], [3.0]])
CLOUD = jax.random.normal(jax.random.key(0), (6, 4))


def test_kernel_of_the_golden_table():
    kernel, _ = rbf_kernel(THREE)
    found = [kernel[0, 1], kernel[1, 2], kernel[0, 2]]
    np.testing.assert_allclose(found, [0.25, 0.00390625, 3.81e-6], atol=1e-8)
    np.testing.assert_allclose(jnp.diag(kernel), 1.0, rtol=1e-6)


def test_repulsion_of_the_golden_table():
    _, repulsion = rbf_kernel(THREE)
    np.testing.assert_allclose(repulsion[:, 0], [-0.693179, 0.671486, 0.021693], atol=1e-6)


def test_the_bandwidth_is_half_the_median_of_all_squared_distances_over_log():
    kernel, _ = rbf_kernel(THREE)
    np.testing.assert_allclose(-0.5 / jnp.log(kernel[0, 1]), 0.360674, rtol=1e-5)


def test_repulsion_is_the_gradient_of_the_summed_kernel():
    """Of sum_j k(x_j, x_i) in the x_j, each moved alone, the bandwidth being constant."""
    distances = np.sum(np.square(CLOUD[:, None] - CLOUD[None]), axis=-1)
    squared_width = 0.5 * np.median(distances) / np.log(7)

    def kernel(one, other):
        return jnp.exp(-0.5 * jnp.sum(jnp.square(one - other)) / squared_width)

    gradients = jax.vmap(jax.vmap(jax.grad(kernel), (0, None)), (None, 0))(CLOUD, CLOUD)
    np.testing.assert_allclose(rbf_kernel(CLOUD)[1], gradients.sum(1), atol=1e-6)


def test_repulsion_of_all_particles_together_is_nothing():
    np.testing.assert_allclose(jnp.sum(rbf_kernel(CLOUD)[1], axis=0), 0.0, atol=1e-6)


def test_repulsion_drives_particles_apart():
    _, repulsion = rbf_kernel(THREE)
    assert spread(THREE + 0.1 * repulsion) > spread(THREE) + 0.04


def test_equal_particles_do_not_repel_each_other():
    kernel, repulsion = rbf_kernel(jnp.full((4, 3), 0.7))
    np.testing.assert_array_equal(repulsion, 0.0)
    np.testing.assert_array_equal(kernel, 1.0)


def test_one_particle_climbs_its_own_gradient():
    gradient = jnp.array([[1.0, -2.0]])
    np.testing.assert_array_equal(stein_direction(jnp.array([[3.0, 4.0]]), gradient), gradient)


def test_spread_is_the_mean_distance_of_pairs():
    np.testing.assert_allclose(spread(THREE), (1 + 3 + 2) / 3, rtol=1e-6)
    assert spread(THREE[:1]) == 0.0


def descended(direction):
    """30 particles after 600 steps on N(1, 0.5^2)."""
    start = jax.random.normal(jax.random.key(0), (30, 1))

    def step(x, _):
        return x + 0.05 * direction(x, -(x - 1.0) / 0.25), None

    return np.asarray(jax.lax.scan(step, start, None, 600)[0])


def test_particles_follow_a_gaussian():
    particles = descended(stein_direction)
    np.testing.assert_allclose(particles.mean(), 1.0, atol=0.05)
    assert 0.4 <= particles.std() <= 0.6  # measured with another code .483


def test_particles_collapse_without_repulsion():
    particles = descended(lambda x, gradient: rbf_kernel(x)[0] @ gradient / len(x))
    assert particles.std() < 0.1
