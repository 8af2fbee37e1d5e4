"""Sans-IO core of metadata: versioned keys that all must agree on, transactions, their log, and watches.

No asyncio, os, socket, time or random here: a transaction in, a record to log out, and replay is the only writer.
"""
