"""Removes a stream for good: what its ledgers hold on the nodes first, then the record that names them.

In this order a crash leaves a record behind, never a ledger that nobody knows of: whoever finds the record does all of
it again. Only for streams that nobody will open any more.
"""

from __future__ import annotations

import asyncio

from pydanube.base.errors import CatalogConflict, DanubeError
from pydanube.ledger.catalog import LedgerRecord
from pydanube.ports.catalog import Catalog
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import StorageNodes
from pydanube.storage.stream import GONE


async def remove_stream(name: str, catalog: Catalog, nodes: StorageNodes, randomness: Randomness) -> None:
    """Returns when nothing of it is left. After an error some of it is; the next call goes on with that."""
    while True:
        record, version = await catalog.load(name)
        if not version:
            return
        taken = record.taken_over(randomness.bytes(8).hex())  # an owner that still writes opens no more ledgers
        try:
            version = await catalog.store(name, taken, version)
            for ledger in record.ledgers:
                await _delete(ledger, nodes)
            return await catalog.delete(name, version)
        except CatalogConflict:
            continue  # an owner's last decision, or somebody else who removes it


async def _delete(ledger: LedgerRecord, nodes: StorageNodes) -> None:
    deletions = [nodes.get(identity).delete(ledger.id) for identity in ledger.nodes]
    for answer in await asyncio.gather(*deletions, return_exceptions=True):
        if isinstance(answer, BaseException) and not isinstance(answer, GONE):
            raise answer if isinstance(answer, DanubeError) else DanubeError(f"ledger {ledger.id}: {answer}")
