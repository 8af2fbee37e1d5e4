"""Buffers on their way to a socket: small ones become one, since each costs a transport more than its bytes."""

from __future__ import annotations

from collections.abc import Sequence

from pydanube.wire.frames import Buffer

SMALL_BYTES = 4096  # below it a copy is cheaper than one more buffer


def coalesced(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes; large buffers stay as they are."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < SMALL_BYTES:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(buffer)
    if small:
        joined.append(b"".join(small))
    return joined
