"""The peer protocol, which the nodes of a cluster speak to each other: bytes in, values out. It owns no socket."""
