"""Where the keys of tokens come from: files, and servers of key sets. Runs in a thread, because both may be slow."""

from __future__ import annotations

from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydanube.base.errors import ConfigInvalid
from pydanube.base.limits import JWKS_BYTES_MAX, KEYS_FETCH_SECONDS, TOKEN_SECRET_BYTES_MAX
from pydanube.base.redaction import redacted_url

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def is_url(source: str) -> bool:
    return "://" in source


def check_source(source: str) -> None:
    """Raises `ConfigInvalid` for a URL that keys must not come from, because it is not certain which server answers."""
    if not is_url(source):
        return
    parts = urlsplit(source)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ConfigInvalid(f"auth.jwt.jwks is {redacted_url(source)}; it must be a path, or begin with https://")


def read_secret(path: Path) -> bytes:
    return _read_file("auth.jwt.secret_file", path, TOKEN_SECRET_BYTES_MAX)


def read_key_set(source: str) -> bytes:
    return _fetch(source) if is_url(source) else _read_file("auth.jwt.jwks", Path(source), JWKS_BYTES_MAX)


def _read_file(setting: str, path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            found = file.read(most + 1)
    except OSError as error:
        raise ConfigInvalid(f"{setting} is {path}, which cannot be read: {error.strerror}") from None
    if len(found) > most:
        raise ConfigInvalid(f"{setting} is {path}, which has more than {most} bytes")
    return found


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        """Keys come only from the server that was configured."""


def _fetch(url: str) -> bytes:
    try:
        with build_opener(_NoRedirects).open(Request(url), timeout=KEYS_FETCH_SECONDS) as answer:
            found: bytes = answer.read(JWKS_BYTES_MAX + 1)
    except (URLError, HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigInvalid(f"the key set at {redacted_url(url)} cannot be fetched: {reason}") from None
    return found
