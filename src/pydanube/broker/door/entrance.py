"""The door as faces see it. They are given nothing else of the broker, so that there is no way past a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from pydanube.broker.door.session import Origin, Session
from pydanube.broker.limits.intake import Account
from pydanube.operations.broker import Connection
from pydanube.ports.clock import Clock
from pydanube.ports.offload import Offload


class Entrance(Protocol):
    @property
    def clock(self) -> Clock: ...

    @property
    def offload(self) -> Offload: ...

    @property
    def keys_version(self) -> int:
        """Changes when tokens have to be checked again, because they are checked with other keys."""

    def authenticate(self, token: str | None, origin: Origin, *, needs_token: bool = False) -> Session:
        """A session through which the caller does everything, as the principal that the token names.

        Raises `Unauthenticated`, `TooManyAttempts` or `TokensNotConfigured`. Without a token, the caller is anonymous,
        unless the broker checks tokens and the protocol needs one.
        """

    def add_connections(self, listed: Callable[[], Iterable[Connection]]) -> Iterator[int]:
        """Shows the connections of a listener to those who may see them. Returns the numbers of new ones."""

    def account(self) -> Account:
        """Counts what one connection publishes. While it sends faster than the disk writes, it is not read from."""
