"""Topics in a simulated world: their brokers and clients, the cold tier, and what must hold after healing."""
