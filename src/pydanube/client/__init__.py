"""The client library for the native protocol. It reaches the world only through ports, so the simulator runs it too.

Programs use `pydanube.connect`, which supplies the system's clock, randomness and sockets.
"""

from __future__ import annotations

from pydanube.client.admin import Admin
from pydanube.client.client import Client, ClientEvent
from pydanube.client.consumer import Consumer
from pydanube.client.messages import Message, MessageBatch
from pydanube.client.outgoing_batch import Receipt
from pydanube.client.producer import Producer
from pydanube.client.reader import Reader
from pydanube.client.send_results import Receipts

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
