"""Who makes a call. A principal says nothing about where the call comes from."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Self

NEVER = 1 << 62  # microseconds since 1970 at which a principal without a token expires


class PrincipalKind(StrEnum):
    ANONYMOUS = "anonymous"  # a caller without authentication
    SYSTEM = "system"  # the broker itself
    USER = "user"
    SERVICE_ACCOUNT = "service_account"  # a program
    BROKER = "broker"  # another broker of the cluster


class Principal(NamedTuple):
    kind: PrincipalKind
    name: str

    def __str__(self) -> str:
        return self.name if self.name == self.kind else f"{self.kind} {self.name}"

    @property
    def expires(self) -> int:
        """Microseconds since 1970, from which on it may do nothing."""
        return NEVER

    def renew(self, newer: Principal) -> None:
        """Called when its caller has shown a newer token: what it has opened lives as long as that."""


class TokenPrincipal(Principal):
    """A principal that a token names, until the token expires. It equals the same principal of another token, so that
    a caller with a new token keeps what it has opened."""

    _expires: int

    @classmethod
    def of(cls, kind: PrincipalKind, name: str, expires: int) -> Self:
        principal = cls(kind, name)
        principal._expires = expires
        return principal

    @property
    def expires(self) -> int:
        return self._expires

    def renew(self, newer: Principal) -> None:
        if newer == self:
            self._expires = max(self._expires, newer.expires)


ANONYMOUS = Principal(PrincipalKind.ANONYMOUS, "anonymous")
SYSTEM = Principal(PrincipalKind.SYSTEM, "system")  # dead letters, decided rows, housekeeping, reopening
BOUND_KINDS = (PrincipalKind.USER, PrincipalKind.SERVICE_ACCOUNT)  # those that roles can be bound to
