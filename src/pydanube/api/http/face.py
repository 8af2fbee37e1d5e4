"""What the routes of HTTP have in common, and who calls them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from pydanube.access.principals import ANONYMOUS
from pydanube.api.listening.turns import Turns
from pydanube.base.errors import HttpBusy
from pydanube.base.limits import WAITING_REQUESTS_MAX
from pydanube.broker.door.door import Door
from pydanube.broker.door.session import Origin, Session
from pydanube.broker.door.values import Account
from pydanube.ports.clock import Clock
from pydanube.wire.objects import Object


@dataclass(slots=True)
class HttpFace:
    """One for a broker, whatever it listens on."""

    door: Door
    clock: Clock
    describe: Callable[[], Object]  # the broker: version, address
    config: Callable[[], Object]  # what is in force
    metrics: Callable[[], Awaitable[bytes]]
    turns: Turns = field(default_factory=Turns)
    account: Account = field(init=False)  # of what is published over HTTP: all of it together is one publisher
    waiting: int = 0  # requests that wait for messages
    turn: int = 0  # requests with messages that have no key, so far: each goes to the next partition

    def __post_init__(self) -> None:
        self.account = self.door.account()

    def session(self, address: str) -> Session:
        """Of a connection, whose requests have not said who they are from."""
        return self.door.session(ANONYMOUS, Origin("http", address))

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


class Caller(NamedTuple):
    """Of one request."""

    face: HttpFace
    session: Session
