"""Streams in a simulated world: their brokers and clients, and what must hold after healing."""
