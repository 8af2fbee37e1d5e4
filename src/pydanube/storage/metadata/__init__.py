"""Metadata stores of one broker: on disk, and in memory for tests."""
