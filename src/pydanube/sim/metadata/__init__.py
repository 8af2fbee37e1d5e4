"""A simulated world of nodes that agree on the metadata: stores, their clients, members that come and go, and checks."""
