"""Meta-World's benchmarks."""
