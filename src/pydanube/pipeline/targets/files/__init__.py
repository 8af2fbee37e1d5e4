"""Folders of Parquet or JSON files as a target."""
