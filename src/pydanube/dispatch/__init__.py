"""Sans-IO cores of delivery: which consumer of a subscription gets which offsets, and what becomes of failures.

No asyncio, os, socket, time or random here. The engines keep nothing durable: what is acknowledged is the cursor's.
"""
