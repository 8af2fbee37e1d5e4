"""Sans-IO cores of storage: the journal's format and its damage rules, the ledger table, quorums and their recovery.

No asyncio, os, socket, time or random here: events and bytes in, values and effects out.
"""
