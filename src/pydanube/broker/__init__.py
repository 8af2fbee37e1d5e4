"""Hosts of topics: they drive the cores, own the streams, and do the effects in the order the cores state."""
