"""The storage node: its journal, its files, its start after a crash; on disk, in memory, or across the network."""
