"""Reads pieces of a backup. The broker sends each piece as the payload of a batch, which has a checksum."""

from __future__ import annotations

from pydanube.client.client import Client
from pydanube.operations.backups import ReadBackup
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Batches


async def read_piece(client: Client, piece: ReadBackup) -> bytes:
    answer = await client.ask_any(piece)
    assert isinstance(answer, Batches)
    [data] = Batch.parse(answer.batches[0]).payloads()
    assert data is not None
    return data
