"""What a host needs from the world, as `typing.Protocol`: clock, disk, network, randomness, offload, storage nodes.

`adapters/` has the real ones, `sim/` the simulated ones. Product code never reaches around a port.
"""
