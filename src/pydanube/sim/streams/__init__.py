"""Streams in a simulated world: who publishes and reads them, and what was promised to them."""
