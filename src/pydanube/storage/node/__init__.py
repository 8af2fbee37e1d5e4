"""The storage node, on disk, in memory or across the network: its journal, its files, and its start after a crash."""
