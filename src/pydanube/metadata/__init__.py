"""Sans-IO core of metadata: what everybody must agree on, as versioned keys; transactions, their log, watches.

No asyncio, os, socket, time or random here: a transaction in, a record to log out, and replay is the only writer.
"""
