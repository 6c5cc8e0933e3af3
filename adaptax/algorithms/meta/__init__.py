"""Agents that learn to adapt."""
