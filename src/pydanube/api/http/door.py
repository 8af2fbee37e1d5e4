"""What the routes of HTTP need of their broker: the service behind it, and what it says of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pydanube.api.turns import Turns
from pydanube.broker.holds import ANONYMOUS, Principal
from pydanube.broker.intake import Account
from pydanube.broker.service import Service
from pydanube.ports.clock import Clock
from pydanube.wire.objects import Object


@dataclass(slots=True)
class Door:
    """Whoever asks over HTTP is anonymous, as everybody is for now."""

    service: Service
    clock: Clock
    describe: Callable[[], Object]  # the broker: version, address
    config: Callable[[], Object]  # what is in force
    metrics: Callable[[], Awaitable[bytes]]
    turns: Turns = field(default_factory=Turns)
    principal: Principal = ANONYMOUS
    account: Account = field(init=False)  # of what is published over HTTP: all of it together is one publisher
    turn: int = 0  # requests with messages that have no key, so far: each goes to the next partition

    def __post_init__(self) -> None:
        self.account = Account(self.service.intake)
