"""The topics that are open on this broker: who uses them, and what happens to them while they are served."""
