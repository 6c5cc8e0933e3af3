"""Policy gradients on fresh data."""
