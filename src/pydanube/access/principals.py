"""Who makes a call. A principal says nothing about where the call comes from."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class PrincipalKind(StrEnum):
    ANONYMOUS = "anonymous"  # a caller without authentication
    SYSTEM = "system"  # the broker itself


class Principal(NamedTuple):
    kind: PrincipalKind
    name: str

    def __str__(self) -> str:
        return self.name if self.name == self.kind else f"{self.kind} {self.name}"


ANONYMOUS = Principal(PrincipalKind.ANONYMOUS, "anonymous")
SYSTEM = Principal(PrincipalKind.SYSTEM, "system")  # dead letters, decided rows, housekeeping, reopening
