import os
import subprocess
import sys

PROGRAM = """
import jax
from adaptax.core.devices import make_every_core_a_device, over_devices
make_every_core_a_device()  # the cores of a machine that runs tests are not known: here two
jax.config.update("jax_num_cpu_devices", 2)

import numpy as np
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.sampling.sampler import Sampler

SETTINGS = {"meta_batch_size": 4, "num_episodes": 2, "hidden_sizes": (4,)}
CASES = {
    "promp": {}, "promp, minibatches": {"num_minibatches": 2},
    # More iterations of conjugate gradients would make percents of what is rounding at first.
    "trpo-maml": {"trust_region": {"cg_iters": 2}},
}
suite = make_suite("point-corners")
sampler = Sampler(suite, suite.train, 0, "training")
for name, others in CASES.items():
    algorithm = make_algorithm(name.partition(",")[0], suite.spec, **SETTINGS, **others)
    state = algorithm.init(jax.random.key(0))
    data, _ = algorithm.meta.collect(state.params, sampler, dice=algorithm.dice)
    seen = []

    def update(state, data):
        seen.append({len(x.devices()) for x in jax.tree.leaves((state, data))})
        return algorithm.update(state, data)

    one, two = update(state, data)[0], over_devices(update, state, data)[0]
    assert seen == [{1}, {2}], seen
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert b.devices() == {jax.devices()[0]}
        if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=name)
    moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (state.params, two.params)))]
    assert max(moved) > 1e-4, moved

over_devices(lambda shared, parts: seen.append(parts.devices()), 0, jax.numpy.ones(3))
assert seen[-1] == {jax.devices()[0]}  # three parts, two devices: all on one
make_every_core_a_device()  # too late, and says nothing
assert len(jax.devices()) == 2
"""


def test_updates_on_two_devices_are_those_on_one():
    unset = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=unset
    )
    assert done.returncode == 0, done.stderr
