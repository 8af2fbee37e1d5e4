"""Simulated machines: the loop, and the ports of a process on it (clock, disk, network, objects, randomness)."""
