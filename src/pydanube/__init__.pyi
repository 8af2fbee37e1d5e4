from collections.abc import Callable

from pydanube.client import Client, ClientEvent
from pydanube.client.transport import Dialer
from pydanube.ports.clock import Clock
from pydanube.ports.randomness import Randomness

__version__: str

def connect(
    address: str,
    *,
    ca_file: str | None = None,
    dialer: Dialer | None = None,
    on_event: Callable[[ClientEvent], None] | None = None,
    request_timeout: float = 30.0,
    clock: Clock = ...,
    randomness: Randomness = ...,
) -> Client: ...
