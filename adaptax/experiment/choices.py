"""What commands, and the functions behind them, let one choose among."""

from __future__ import annotations

from typing import Literal

Where = Literal["here", "ray"]
"""Where programs run: on this machine, or as tasks of a Ray cluster."""
Metric = Literal["return", "success"]
"""What the score of a run on a task is."""
VideoFormat = Literal["gif", "mp4"]
