"""Exactly-once writes of jobs: staged, decided in the metadata, and rolled forward."""
