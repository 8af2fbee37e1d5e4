"""Fields of requests that only the native protocol has."""

from __future__ import annotations

from pydanube.api.operations.fields import number
from pydanube.base.errors import RequestInvalid
from pydanube.wire.objects import Object


def channel_number(fields: Object) -> int:
    found: int = number(fields, "channel")
    if not 0 < found < 1 << 32:
        raise RequestInvalid(f"{found} is not a valid channel number")
    return found
