"""Where something is, in one spelling, so that two names of one place are seen to be one. Only links are looked at."""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, unquote, urlsplit

SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "azblob": "az", "azdls": "az"}
_ONE_CATALOG = ("http:", "https:", "thrift:")  # others keep several in one place, by their names


def place_identity(place: str) -> str:
    """Of a path or a URL, without a slash at its end."""
    if "://" not in place:
        return os.path.realpath(place)
    parts = urlsplit(place)
    if parts.scheme == "file":
        return os.path.realpath("/" + unquote(parts.path).lstrip("/"))
    endpoint = dict(parse_qsl(parts.query)).get("endpoint", "").rstrip("/")
    steps = "/".join(step for step in parts.path.split("/") if step)
    return f"{SCHEMES.get(parts.scheme, parts.scheme)}://{endpoint}|{parts.netloc}/{steps}".rstrip("/")


def sqlite_file(uri: str | None) -> str | None:
    scheme, found, path = (uri or "").partition(":///")
    return path.partition("?")[0] if found and scheme.startswith("sqlite") and not path.startswith(":") else None


def iceberg_identity(catalog: str, uri: str | None, warehouse: str | None, table: str) -> str:
    """`uri` is the catalog's; without one its name has to say which it is."""
    if uri is None or not uri.startswith(_ONE_CATALOG):
        file = sqlite_file(uri)
        return f"iceberg|{catalog}|{os.path.realpath(file) if file else uri or ''}|{table}"
    several = f"|{warehouse or ''}" if uri.startswith("http") else ""  # a server may have several
    return f"iceberg|{uri.rstrip('/')}{several}|{table}"
