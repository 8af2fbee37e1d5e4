"""Hosts of storage: the node that keeps ledgers in a journal, the writer that copies to several nodes, recovery."""
