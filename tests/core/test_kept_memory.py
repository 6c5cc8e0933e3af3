import resource
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: no huge pages, which fault once
from adaptax.core.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
import jax, jax.numpy as jnp

@jax.jit
def with_large_temporaries(x):
    y = jnp.tanh(x + jnp.arange(2.0**17))
    return jnp.sum(y * jnp.tanh(y @ jnp.ones((2**17, 1))))

x = jnp.ones((72, 1))  # small: a thread that held both would map the second one each time
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
    """The fewest of a call of a program with 36 MiB of temporary memory, in an own interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(resource.getpagesize() != 4096, reason="counts pages of 4 KiB")
def test_large_temporary_memory_is_used_again():
    afresh = page_faults("afresh")
    assert afresh > 8_000  # 9,216 pages of 4 KiB
    assert page_faults("keep") < 0.5 * afresh
