"""The function that decides who may do what, as the door asks it: it also notes what a request was allowed, so that the
same can be asked again if rights have changed while the request waited (§50).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pydanube.access.principals import Principal
from pydanube.access.rights import Action, Authorise, Resource

Right = tuple[Action, Resource]


class Allowed:
    """What one request was allowed, whichever tasks it was done in."""

    __slots__ = ("open", "principal", "rights")

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.open = True  # tasks that outlive the request note nothing more
        self.rights: dict[Right, None] = {}


_allowed: ContextVar[Allowed | None] = ContextVar("allowed", default=None)


class Asking:
    """In the place of `authorise`."""

    def __init__(self, authorise: Authorise) -> None:
        self._authorise = authorise

    def __call__(self, principal: Principal, action: Action, resource: Resource) -> None:
        self._authorise(principal, action, resource)
        allowed = _allowed.get()
        if allowed is not None and allowed.open and allowed.principal == principal:
            allowed.rights[action, resource] = None

    @contextmanager
    def noting(self, principal: Principal) -> Iterator[Allowed]:
        """Notes what the principal is allowed within this block."""
        allowed = Allowed(principal)
        token = _allowed.set(allowed)
        try:
            yield allowed
        finally:
            allowed.open = False
            _allowed.reset(token)
