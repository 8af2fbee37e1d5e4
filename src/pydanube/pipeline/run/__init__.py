"""Running a pipeline: preflight, checkpoint, reports to the broker, resets."""
