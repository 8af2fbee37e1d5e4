"""Paths and URLs of tables, files and checkpoints: which of them are local, and whether two of them overlap.

Pure, except that symbolic links are resolved.
"""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, unquote, urlsplit

SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "azblob": "az", "azdls": "az"}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)


def scheme_of(location: str) -> str:
    """The scheme of a URL in lower case, or an empty string for a path."""
    return location.split(":", 1)[0].lower() if _SCHEME.match(location) else ""


def local_path(location: str) -> str | None:
    """The normalized path of a location on this machine, or None for a location elsewhere."""
    scheme = scheme_of(location)
    if scheme == "file":
        return os.path.normpath("/" + unquote(urlsplit(location).path).lstrip("/"))
    return None if scheme else os.path.normpath(location)


def location_identity(location: str) -> str:
    """The same text for every spelling of a path or URL, without a trailing slash."""
    if "://" not in location:
        return os.path.realpath(location)
    parts = urlsplit(location)
    if parts.scheme == "file":
        return os.path.realpath("/" + unquote(parts.path).lstrip("/"))
    endpoint = dict(parse_qsl(parts.query)).get("endpoint", "").rstrip("/")
    steps = "/".join(step for step in parts.path.split("/") if step)
    return f"{SCHEMES.get(parts.scheme, parts.scheme)}://{endpoint}|{parts.netloc}/{steps}".rstrip("/")


def within(inner: str, outer: str) -> bool:
    """Whether a location is the same as another one or lies below it, however the two are spelled."""
    one, two = location_identity(inner), location_identity(outer)
    return one == two or one.startswith(two.rstrip("/") + "/")
