"""The callers of one connection whose calls each have credentials of their own, as in HTTP and gRPC."""

from __future__ import annotations

from pydanube.access.principals import Principal
from pydanube.broker.door.entrance import Entrance
from pydanube.broker.door.session import Origin, Session

CALLERS_MAX = 64  # sessions that a connection remembers: proxies send the calls of many callers


def bearer_token(header: str) -> str | None:
    """The token in an Authorization header; None if it has other credentials, such as those for a proxy."""
    scheme, _, token = header.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


class Callers:
    """Owned by the connection. A caller that sends a newer token keeps its session, and what that has opened."""

    def __init__(self, door: Entrance, origin: Origin) -> None:
        self._door = door
        self._origin = origin
        self._header: str | bytes = ""  # of the last call that had one
        self._version = -1  # of the keys that it was checked with
        self._session = self._anonymous = door.authenticate(None, origin)
        self._known: dict[Principal, Session] = {}

    def session_of(self, header: str | bytes | None) -> Session:
        """The session of a call with this header. Raises `Unauthenticated`, `TooManyAttempts` or
        `TokensNotConfigured`."""
        if header is None:
            return self._anonymous
        version = self._door.keys_version
        if header == self._header and version == self._version:
            return self._session
        token = bearer_token(header.decode("latin-1") if isinstance(header, bytes) else header)
        session = self._anonymous if token is None else self._identified(token)
        self._header, self._session, self._version = header, session, version
        return session

    def _identified(self, token: str) -> Session:
        session = self._door.authenticate(token, self._origin)
        known = self._known.get(session.principal)
        if known is not None:
            known.principal.renew(session.principal)
            return known
        if len(self._known) >= CALLERS_MAX:
            del self._known[next(iter(self._known))]
        self._known[session.principal] = session
        return session
