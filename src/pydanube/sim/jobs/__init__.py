"""Jobs that write exactly once to one simulated broker."""
