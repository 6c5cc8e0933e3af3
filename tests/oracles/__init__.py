"""Whole updates of reinforcement learning restated in NumPy float64, with gradients by hand.

Nothing here knows the package that it checks, nor does anything here differentiate by machine.
Parameters are dicts of arrays, which may be nested; random draws come in as numbers.
"""
