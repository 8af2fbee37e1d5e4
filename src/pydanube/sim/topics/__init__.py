"""Topics in a simulated world: producers, consumers, the cold tier, and what was promised to them."""
