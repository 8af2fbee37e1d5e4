"""What a request over HTTP is answered with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from pydanube.wire.objects import Object

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
_NONE: Mapping[str, str] = MappingProxyType({})


class Answer(NamedTuple):
    status: int
    content: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = _NONE


def answer_of(status: int, fields: Object) -> Answer:
    return Answer(status, json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode())
