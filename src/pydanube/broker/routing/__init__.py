"""Where a topic is served: here, or by another broker."""
