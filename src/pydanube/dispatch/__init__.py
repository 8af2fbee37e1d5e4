"""Sans-IO cores of delivery: which consumer of a subscription gets which offsets, and what happens on failure.

They use no asyncio, os, socket, time or random, and keep nothing durable: the cursor records what is acknowledged.
"""
