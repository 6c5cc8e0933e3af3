"""What a policy can remember by, a line each: what `adaptax list` shows without importing JAX."""

from __future__ import annotations

MEMORY_NAMES = {
    "none": "nothing: a policy of what it sees now",
    "gru": "a gated recurrent unit (Cho et al. 2014)",
    "lstm": "a cell with a state of its own (Hochreiter and Schmidhuber 1997)",
    "fast-weights": "matrices written and read by keys (Schmidhuber 1992)",
    "min-gru": "gates of the input alone, a whole sequence at once (Feng et al. 2024)",
    "lru": "complex linear recurrences, a whole sequence at once (Orvieto et al. 2023)",
    "transformer": "attention to the last steps (Parisotto et al. 2019)",
}
