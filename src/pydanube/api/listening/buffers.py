"""Joins small buffers before they are sent, because each buffer costs a transport more than its bytes."""

from __future__ import annotations

from collections.abc import Sequence

from pydanube.wire.frames import Buffer

SMALL_BYTES = 4096  # below this, a copy is cheaper than one more buffer


def coalesced(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers; large ones are left unchanged."""
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
