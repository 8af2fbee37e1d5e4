"""One subscription of a reliable topic: what it reads and delivers, and what its consumers report."""
