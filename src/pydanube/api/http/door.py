"""What the routes of HTTP need of their broker: the service behind it, and what it says of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pydanube.api.listening.turns import Turns
from pydanube.base.errors import HttpBusy
from pydanube.base.limits import WAITING_REQUESTS_MAX
from pydanube.broker.door.leasing import Leasing
from pydanube.broker.door.service import Service
from pydanube.broker.limits.intake import Account
from pydanube.broker.serving.open_topic import ANONYMOUS, Principal
from pydanube.ports.clock import Clock
from pydanube.wire.objects import Object


@dataclass(slots=True)
class Door:
    """The caller over HTTP is anonymous, as everybody is for now."""

    service: Service
    clock: Clock
    describe: Callable[[], Object]  # the broker: version, address
    config: Callable[[], Object]  # what is in force
    metrics: Callable[[], Awaitable[bytes]]
    turns: Turns = field(default_factory=Turns)
    principal: Principal = ANONYMOUS
    account: Account = field(init=False)  # of what is published over HTTP: all of it together is one publisher
    leasing: Leasing = field(init=False)  # of what is received over HTTP
    waiting: int = 0  # requests that wait for messages
    turn: int = 0  # requests with messages that have no key, so far: each goes to the next partition

    def __post_init__(self) -> None:
        self.account = Account(self.service.intake)
        self.leasing = Leasing(self.service)

    @contextmanager
    def waits(self) -> Iterator[None]:
        """A request that waits for messages. Half of all requests may, so that the others find room beside them."""
        if self.waiting >= WAITING_REQUESTS_MAX:
            raise HttpBusy(f"{self.waiting} requests are already waiting for messages")
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
