"""HTTP/1 on the one listener: whether the broker is alive and ready, and what it counts."""
