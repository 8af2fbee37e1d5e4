"""Danube: distributed publish/subscribe and streaming, with a data pipeline that runs on Spark.

The client is loaded when `connect` is first called, so that importing a core loads none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydanube import errors
    from pydanube.base.errors import DanubeError
    from pydanube.client import Client, ClientEvent, Consumer, Message, MessageBatch, Producer, Reader, Receipt
    from pydanube.client.arguments import Duration
    from pydanube.client.tokens import Supplier
    from pydanube.client.transport import Dialer
    from pydanube.ports.clock import Clock
    from pydanube.ports.randomness import Randomness

__version__ = "0.1.0.dev0"
DEFAULT_URL = "danube://127.0.0.1:6650"
__all__ = [
    "Client",
    "ClientEvent",
    "Consumer",
    "DanubeError",
    "Message",
    "MessageBatch",
    "Producer",
    "Reader",
    "Receipt",
    "__version__",
    "connect",
    "errors",
]


def __getattr__(name: str) -> Any:
    """The names of `__all__`, loaded when they are first asked for."""
    if name == "errors":
        return import_module("pydanube.errors")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("pydanube.base.errors" if name == "DanubeError" else "pydanube.client"), name)


def connect(
    address: str | None = None,
    *,
    ca_file: str | None = None,
    token: str | None = None,
    token_file: str | None = None,
    token_supplier: Supplier | None = None,
    dialer: Dialer | None = None,
    on_event: Callable[[ClientEvent], None] | None = None,
    request_timeout: Duration = 30.0,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
) -> Client:
    """Returns a client for the broker at `danube://host:port`, or `danubes://host:port` for TLS.

    Open it with `async with` or `await`. Without an address, it uses DANUBE_URL, or else this machine. With `ca_file`,
    a TLS broker must have a certificate from that authority.

    A broker with authentication needs a token: itself, in a file, or from a function that may be a coroutine function.
    File and function are asked again for each connection. Without any of them, the file DANUBE_TOKEN_FILE is used, if
    that is set.
    """
    from pydanube.adapters.process import register
    from pydanube.adapters.system import SystemClock, SystemRandomness
    from pydanube.client import Client
    from pydanube.client.tokens import Tokens

    if token is None and token_supplier is None:
        token_file = token_file or os.environ.get("DANUBE_TOKEN_FILE") or None
    given = (token, token_file, token_supplier)
    client = Client(
        address or os.environ.get("DANUBE_URL") or DEFAULT_URL,
        ca_file=ca_file,
        tokens=None if given == (None, None, None) else Tokens(*given),
        dialer=dialer,
        on_event=on_event,
        request_timeout=request_timeout,
        clock=clock or SystemClock(),
        randomness=randomness or SystemRandomness(),
    )
    register(client)
    return client
