"""Groups of operations: each method carries out one request of one caller, and answers it.

A group names its requests in `carries_out`. Everything that a face can ask for in one request is found there, whichever
protocol it came by.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from pydanube.access.principals import Principal
from pydanube.access.rights import BROKER, Action, Resource
from pydanube.base.limits import LISTED_BYTES_MAX, LISTED_MAX
from pydanube.operations.operation import Answer, Request

if TYPE_CHECKING:
    from pydanube.broker.door.door import Door
    from pydanube.broker.door.session import Session

Method = Callable[[Any, Any], Awaitable[Answer]]
Item = TypeVar("Item")

METHODS: dict[type[Request[Any]], tuple[type[Verbs], Method]] = {}  # of all groups, by the request they carry out


class Verbs:
    """Created for one call, and dropped after it."""

    __slots__ = ("_door", "_session")
    carries_out: ClassVar[Iterable[tuple[type[Request[Any]], Method]]] = ()

    def __init_subclass__(cls) -> None:
        for request, method in cls.carries_out:
            assert request not in METHODS, request
            METHODS[request] = (cls, method)

    def __init__(self, door: Door, session: Session) -> None:
        self._door = door
        self._session = session

    @property
    def _principal(self) -> Principal:
        return self._session.principal

    def _ask(self, action: Action, resource: Resource = BROKER) -> None:
        self._door.authorise(self._session.principal, action, resource)


def page(found: Sequence[Item], limit: int) -> tuple[list[Item], bool]:
    """As many items as were asked for and fit into a reply, but at least one, and whether more follow."""
    size, limit = 0, min(limit, LISTED_MAX)
    for count, each in enumerate(found[:limit]):
        size += len(msgspec.json.encode(each)) + 1
        if count and size > LISTED_BYTES_MAX:
            return list(found[:count]), True
    return list(found[:limit]), len(found) > limit
