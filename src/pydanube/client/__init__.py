"""The client: hosts that speak the native protocol to a broker, on ports, so that the simulator runs them too.

Programs come in by `pydanube.connect`, which adds the machine's own clock, randomness and sockets.
"""

from __future__ import annotations

from pydanube.client.admin import Admin
from pydanube.client.client import Client, ClientEvent
from pydanube.client.consumer import Consumer
from pydanube.client.messages import Message, MessageBatch
from pydanube.client.outgoing import Receipt, Receipts
from pydanube.client.producer import Producer
from pydanube.client.reader import Reader

__all__ = [
    "Admin",
    "Client",
    "ClientEvent",
    "Consumer",
    "Message",
    "MessageBatch",
    "Producer",
    "Reader",
    "Receipt",
    "Receipts",
]
