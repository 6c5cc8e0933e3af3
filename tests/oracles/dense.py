"""Parameters of dense layers, read from nested dicts of kernels and biases."""

from __future__ import annotations

from typing import Any

import numpy as np


def dense_layers(params: Any, *paths: str) -> dict[str, np.ndarray]:
    """The layers at these paths, in the order in which inputs pass them, as an MLP."""
    out = {}
    for i, path in enumerate(paths):
        node = params["params"]
        for name in path.split("/"):
            node = node[name]
        out[f"w{i}"], out[f"b{i}"] = (np.array(node[k], np.float64) for k in ("kernel", "bias"))
    return out


def twin_layers(params: Any, *paths: str) -> dict[str, dict[str, np.ndarray]]:
    """The same of two networks, whose arrays have a leading axis of two."""
    twins = {"0": {}, "1": {}}
    for name, both in dense_layers(params, *paths).items():
        for twin, own in zip(twins, both, strict=True):
            twins[twin][name] = own
    return twins
