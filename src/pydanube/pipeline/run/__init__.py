"""Running a pipeline: checks before the start, checkpoint, reports to the broker, resets."""
