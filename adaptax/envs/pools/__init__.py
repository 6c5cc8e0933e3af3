"""Pools: P environments stepped together, wherever they run."""
