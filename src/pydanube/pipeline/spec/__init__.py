"""Declarations of pipelines: read and checked without Spark and without a broker."""
