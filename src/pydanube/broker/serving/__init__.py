"""The topics that are open on this broker: their producers and consumers, and what is done to them meanwhile."""
