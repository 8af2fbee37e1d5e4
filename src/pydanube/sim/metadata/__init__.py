"""A simulated world of nodes that agree on the metadata: stores, their clients, changing members, and checks."""
