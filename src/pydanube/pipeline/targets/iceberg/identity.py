"""Which table of which catalog is meant, as one text, so that two ways to name it are recognized. Needs no library."""

from __future__ import annotations

import os

_ONE_CATALOG = ("http:", "https:", "thrift:")  # other addresses can hold several catalogs, told apart by name


def sqlite_file(uri: str | None) -> str | None:
    scheme, found, path = (uri or "").partition(":///")
    return path.partition("?")[0] if found and scheme.startswith("sqlite") and not path.startswith(":") else None


def iceberg_identity(catalog: str, uri: str | None, warehouse: str | None, table: str) -> str:
    """`uri` is the address of the catalog; without one, the name of the catalog identifies it."""
    if uri is None or not uri.startswith(_ONE_CATALOG):
        file = sqlite_file(uri)
        return f"iceberg|{catalog}|{os.path.realpath(file) if file else uri or ''}|{table}"
    several = f"|{warehouse or ''}" if uri.startswith("http") else ""  # one server may have several warehouses
    return f"iceberg|{uri.rstrip('/')}{several}|{table}"
