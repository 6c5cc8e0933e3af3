"""Pure functions of arrays: returns, losses, distributions. No environment, no file, no state."""
