"""Sans-IO core of consensus: one log that a majority of nodes agrees on, whichever of them fail.

No asyncio, os, socket, time or random here: messages, proposals and the time go in; what to write and to send comes
out. Everything that a node promises is on its disk first, so a host carries out effects in the order that they state.
"""
