"""Dead letters of a pipeline: read where they lie, and published again."""
