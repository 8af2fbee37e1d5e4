"""Pieces of a backup, as the broker hands them out: payloads of batches, so that a checksum goes with each."""

from __future__ import annotations

from typing import Any

from pydanube.client.client import Client
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Batches


async def read_piece(client: Client, **place: Any) -> bytes:
    """Of a file: `backup`, its `name`, `offset` and `length`."""
    answer = await client.ask_any("backup.read", place)
    assert isinstance(answer, Batches)
    [data] = Batch.parse(answer.batches[0]).payloads()
    assert data is not None
    return data
