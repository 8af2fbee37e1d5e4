"""Reads a whole stream after healing, with retries."""

from __future__ import annotations

import asyncio

from pydanube.base.errors import DanubeError, OffsetNotConfirmed
from pydanube.sim.world.history import History
from pydanube.storage.stream.stream import Stream
from pydanube.wire.batch import Batch

READ_ATTEMPTS = 100  # a tenth of a second apart


async def read_patiently(stream: Stream, offset: int) -> list[Batch]:
    """Retries for a while: a node may still be starting, or a ledger recovering."""
    for _ in range(READ_ATTEMPTS):
        try:
            return await stream.read(offset, 50_000)
        except OffsetNotConfirmed:
            raise
        except DanubeError:
            await asyncio.sleep(0.1)
    return await stream.read(offset, 50_000)


async def read_all(history: History, stream: Stream, name: str = "") -> list[tuple[int, bytes, int]]:
    """`name` is that of its topic."""
    found: list[tuple[int, bytes, int]] = []
    offset, end = stream.first, stream.confirmed
    while offset <= end:
        try:
            batches = await read_patiently(stream, offset)
        except OffsetNotConfirmed:
            break
        except DanubeError as error:
            history.check(False, "I1", f"{name or stream.name}: offset {offset} cannot be read: {error.code}: {error}")
            break
        for batch in batches:
            for row, payload in enumerate(batch.payloads()):
                found.append((batch.base_offset + row, payload or b"", batch.epoch))
        offset = batches[-1].last_offset + 1
    return found
