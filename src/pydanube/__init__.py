"""Danube: distributed publish/subscribe and streaming, with a data pipeline that runs on Spark.

The client is loaded when `connect` is first called, so that importing a core loads none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydanube.client import Client, ClientEvent
    from pydanube.client.transport import Dialer
    from pydanube.ports.clock import Clock
    from pydanube.ports.randomness import Randomness

__version__ = "0.1.0.dev0"
__all__ = ["__version__", "connect"]


def connect(
    address: str,
    *,
    ca_file: str | None = None,
    dialer: Dialer | None = None,
    on_event: Callable[[ClientEvent], None] | None = None,
    request_timeout: float = 30.0,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
) -> Client:
    """A client of the broker at `danube://host:port`, or `danubes://host:port` for TLS.

    With `ca_file` a TLS broker must have a certificate of that authority.
    """
    from pydanube.adapters.system import SystemClock, SystemRandomness
    from pydanube.client import Client

    return Client(
        address,
        ca_file=ca_file,
        dialer=dialer,
        on_event=on_event,
        request_timeout=request_timeout,
        clock=clock or SystemClock(),
        randomness=randomness or SystemRandomness(),
    )
