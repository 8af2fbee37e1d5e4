"""A declared pipeline as one query of Spark: its rows, its steps, its writer, its session and its progress."""
