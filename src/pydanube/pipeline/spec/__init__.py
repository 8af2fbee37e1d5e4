"""Pipelines as declared: read and checked without Spark and without a broker."""
