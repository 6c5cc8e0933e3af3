"""Multi-layer perceptrons {"w0": [I, H], "b0": [H], "w1": ..., ...}; rows [B, I]; last linear."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Params = dict[str, np.ndarray]


@dataclass(frozen=True)
class Pass:
    """What a forward pass leaves for the passes that follow it."""

    params: Params
    kind: str
    inputs: list[np.ndarray]
    """What every layer was given, [B, I]."""

    @property
    def slopes(self) -> list[np.ndarray]:
        """Derivatives of the hidden units that give the inputs of layers 1, 2, ..., [B, H]."""
        hidden = self.inputs[1:]
        return [1.0 - h**2 if self.kind == "tanh" else (h > 0) * 1.0 for h in hidden]


def depth(params: Params) -> int:
    """Layers."""
    return sum(name.startswith("w") for name in params)


def forward(params: Params, x: np.ndarray, kind: str) -> tuple[np.ndarray, Pass]:
    """Outputs [B, O] for inputs [B, I]; hidden units are of kind "tanh" or "relu"."""
    inputs = []
    for i in range(depth(params)):
        inputs.append(x)
        x = x @ params[f"w{i}"] + params[f"b{i}"]
        if i + 1 < depth(params):
            x = np.tanh(x) if kind == "tanh" else np.maximum(x, 0.0)
    return x, Pass(params, kind, inputs)


def backward(done: Pass, grad: np.ndarray) -> tuple[Params, np.ndarray]:
    """From the gradient of outputs [B, O]: of parameters, and of inputs [B, I]."""
    grads: Params = {}
    for i in reversed(range(len(done.inputs))):
        grads[f"w{i}"] = done.inputs[i].T @ grad
        grads[f"b{i}"] = grad.sum(0)
        grad = grad @ done.params[f"w{i}"].T
        if i > 0:
            grad = grad * done.slopes[i - 1]
    return grads, grad


def tangent(done: Pass, direction: Params) -> np.ndarray:
    """J v [B, O]: how the outputs change where parameters move along `direction`."""
    change = np.zeros_like(done.inputs[0])
    for i in range(len(done.inputs)):
        inputs = done.inputs[i]
        change = change @ done.params[f"w{i}"] + inputs @ direction[f"w{i}"] + direction[f"b{i}"]
        if i + 1 < len(done.inputs):
            change = change * done.slopes[i]
    return change
