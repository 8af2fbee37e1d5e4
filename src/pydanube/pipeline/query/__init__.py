"""A declared pipeline as one query of Spark: source, steps, session, and what Spark reports about it."""
