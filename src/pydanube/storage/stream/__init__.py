"""The owner's side of a stream: the writer, recovery, reading from copies and segments, the tail cache."""
