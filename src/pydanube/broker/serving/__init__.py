"""The topics that are open on this broker: their producers and consumers, and changes to them."""
