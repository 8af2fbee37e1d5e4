"""The real world behind the ports: POSIX disk, system clock and randomness, a thread pool, object storage."""
