"""The real implementations of the ports: POSIX disk, system clock and randomness, a thread pool, object storage."""
