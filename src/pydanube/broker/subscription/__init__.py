"""One subscription of a reliable topic at work: what it reads, hands out, and is told by its consumers."""
