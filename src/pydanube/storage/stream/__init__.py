"""The owner's side of a stream: its states, the writer, recovery, reading from copies and segments, the tail cache."""
