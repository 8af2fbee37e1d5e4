"""What a request over HTTP is answered with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
RAW = "application/octet-stream"
_NONE: Mapping[str, str] = MappingProxyType({})


class Answer(NamedTuple):
    status: int
    content: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = _NONE


def answer_of(status: int, found: Any) -> Answer:
    """The JSON of an operation's answer, or of a document."""
    return Answer(status, msgspec.json.encode(found))
