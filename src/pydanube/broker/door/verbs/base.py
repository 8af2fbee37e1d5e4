"""What every group of verbs has: the door, and the session on whose behalf it acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydanube.access.principals import Principal
from pydanube.access.rights import BROKER, Action, Resource

if TYPE_CHECKING:
    from pydanube.broker.door.door import Door
    from pydanube.broker.door.session import Session


class Verbs:
    """Created for one call, and dropped after it."""

    __slots__ = ("_door", "_session")

    def __init__(self, door: Door, session: Session) -> None:
        self._door = door
        self._session = session

    @property
    def _principal(self) -> Principal:
        return self._session.principal

    def _ask(self, action: Action, resource: Resource = BROKER) -> None:
        self._door.authorise(self._session.principal, action, resource)
