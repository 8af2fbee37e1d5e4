"""How callers of a broker prove who they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """At least one source of keys is set."""

    secret_file: Path | None = None  # the shared secret of HS256
    jwks: str | None = None  # path or URL of a key set
    issuer: str | None = None  # that tokens must have; any if None
    audience: str | None = None  # the same
    leeway_seconds: int = 60
    super_admins: tuple[str, ...] = ()
