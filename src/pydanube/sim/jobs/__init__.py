"""Simulated jobs that write exactly once to one whole broker."""
