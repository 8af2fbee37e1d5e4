"""Dead letters of a pipeline: read from their table or topic, and published again."""
