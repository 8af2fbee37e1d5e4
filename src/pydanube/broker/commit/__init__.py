"""Writes of jobs that happen exactly once: staged, decided in the metadata, rolled forward."""
