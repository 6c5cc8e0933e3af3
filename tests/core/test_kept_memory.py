import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from adaptax.core.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
import jax, jax.numpy as jnp

@jax.jit
def with_large_temporaries(x):
    y = jnp.tanh(x)
    return jnp.sum(y * jnp.tanh(y @ jnp.ones((2**17, 1))))

x = jnp.ones((100, 2**17))
for _ in range(20):  # every thread that may run it has memory of its own
    with_large_temporaries(x).block_until_ready()
faults = []
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with_large_temporaries(x).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))  # a thread may run the program for the first time while it is counted
"""


def page_faults(mode: str) -> int:
    """The fewest of a call of a program with 50 MiB of temporary memory, in an own interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.slow
def test_large_temporary_memory_is_used_again():
    afresh = page_faults("afresh")
    assert afresh > 10_000  # 12,800 pages of 4 KiB
    assert page_faults("keep") < 0.5 * afresh
