"""A world of simulated machines with storage nodes and brokers, and the faults that happen in it."""
