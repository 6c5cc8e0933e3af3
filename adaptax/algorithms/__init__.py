"""Algorithms: one short file each."""
