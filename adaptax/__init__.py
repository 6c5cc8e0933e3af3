"""adaptax: agents that learn to adapt to a new task within a few episodes."""

__version__ = "0.1.0"
