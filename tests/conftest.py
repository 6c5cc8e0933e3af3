"""One JAX for all tests: on the CPU, with one cache of compiled programs a test session.

The cache is shared by the workers of pytest-xdist and by the interpreters that tests start, which
inherit the environment; it makes a second interpreter's start three times as fast.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import os
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The same for these processes and for the programs that they start, whose figures they compare.
os.environ["JAX_NUM_CPU_DEVICES"] = "2"
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    cache = tempfile.mkdtemp(prefix="adaptax-tests-jax-cache-")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def put_programs_whole() -> None:
    """Have this process put a program into the cache in one step: others read there meanwhile.

    JAX just writes the file; where the disk is full, what there was room for would stay.
    """
    with contextlib.suppress(ImportError, AttributeError):  # another JAX may do it elsewhere
        from jax._src.lru_cache import LRUCache

        put = LRUCache.put

        def put_whole(cache: LRUCache, key: str, value: bytes) -> None:
            if cache.eviction_enabled:  # others then wait for a lock
                put(cache, key, value)
                return
            with tempfile.TemporaryDirectory(dir=cache.path) as folder:
                put(LRUCache(folder, max_size=-1), key, value)
                for path in Path(folder).iterdir():
                    path.replace(Path(cache.path) / path.name)

        LRUCache.put = put_whole


put_programs_whole()  # before tests are imported, which all workers do at the same time

# The same examples every time; `pytest --hypothesis-profile search` looks for others.
for profile in ("search", "tests"):
    settings.register_profile(
        profile,
        deadline=None,
        derandomize=profile == "tests",
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("tests")

NUM_TESTS = itertools.count()
MOST_MAPPINGS = 20_000
"""A third of what Linux allows a process; every compiled program takes some."""
MOST_BYTES = 3 << 30
"""Of memory, in a process: two workers beside Ray's then fit in 16 GB."""


@pytest.fixture(autouse=True)
def few_programs():
    """Now and then forget compiled programs.

    Beyond the limit of mappings the next one crashes Python, and a worker would grow to 8 GB.
    """
    if next(NUM_TESTS) % 20 == 0 and Path("/proc/self/maps").exists():
        memory = psutil.Process().memory_info().rss
        with Path("/proc/self/maps").open() as lines:
            mappings = sum(1 for _ in lines)
        if mappings > MOST_MAPPINGS or memory > MOST_BYTES:
            import jax

            jax.clear_caches()
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
            if trim is not None:
                trim(0)  # what is free stays the process's without it


@pytest.fixture(scope="session")
def local_ray():
    """Ray, connected to a local cluster of two CPUs that can import what tests define."""
    ray = pytest.importorskip("ray")
    here = Path(__file__).parent
    paths = [here, here / "sampling", here / "envs", os.environ.get("PYTHONPATH", "")]
    env_vars = {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    os.environ["RAY_AUTH_MODE"] = "disabled"  # or it would leave a token in the home directory
    # "local": a cluster of its own, whatever else runs on this machine.
    runtime_env = {"env_vars": env_vars}
    ray.init("local", num_cpus=2, include_dashboard=False, runtime_env=runtime_env)
    yield ray
    ray.shutdown()
