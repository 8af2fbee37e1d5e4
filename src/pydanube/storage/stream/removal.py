"""Removes a stream for good: first its ledgers on the nodes and its objects, then the record that names them.

In this order a crash leaves a record behind, never an unknown ledger or object: the removal is simply repeated. Only
for streams that are never opened again.
"""

from __future__ import annotations

from pydanube.base.errors import CatalogConflict, SegmentMissing
from pydanube.ports.catalog import Catalog, RecordChange
from pydanube.ports.storage import StorageNodes
from pydanube.storage.stream.cold import ColdReader
from pydanube.storage.stream.sweeper import delete_some
from pydanube.stream.assignment import NOT_ASSIGNED, Held, assigned_with
from pydanube.stream.cold import Cold, Entry, SegmentIndex, index_key
from pydanube.stream.segments import Segment, folder_of, segment_key

TABLE_LOG = "_delta_log/"


async def remove_stream(name: str, catalog: Catalog, nodes: StorageNodes, cold: ColdReader | None = None) -> None:
    """Returns when nothing is left of it. After an error, the next call continues with the rest."""
    while True:
        try:
            unowned = await _release(assigned_with(name), catalog)
            record, version = await catalog.load(name)
            if not version:
                return
            left = record
            while left.ledgers:
                deleted, why = await delete_some(left.ledgers, nodes)
                if why is not None:
                    raise why
                for part in left.ledgers.in_parts(deleted):
                    before, left = left, left.without(part)
                    if left.ledgers:  # a stream with very many is removed in several steps
                        version = await catalog.store([RecordChange(name, left, version, before)], unowned)
            if record.cold != Cold():
                await _delete_objects(name, record.cold, cold or ColdReader(None))
            return await catalog.delete(name, version)
        except CatalogConflict:
            continue  # another task also removes the stream


async def _release(topic: str, catalog: Catalog) -> Held:
    """Takes the topic from its last owner, who can open no more ledgers then."""
    owner, epoch = await catalog.assignment(topic)
    if owner is not None:
        await catalog.assign(Held(topic, epoch), None)
    return Held(topic, NOT_ASSIGNED)


async def _delete_objects(name: str, cold: Cold, reader: ColdReader) -> None:
    """Deletes the objects that the record names, and the log of their table. Others in the same folder stay."""
    segments = reader.segments
    plans = [plan for plan in (cold.planned, cold.merging) if plan is not None]
    for key in [*(each.key for each in cold.doomed), *(segment_key(name, plan) for plan in plans)]:
        await segments.delete(key)
    for entry in cold.entries:
        await _delete_entry(name, entry, reader)
    if cold.tabled:
        for key in await segments.list(folder_of(name) + TABLE_LOG):
            await segments.delete(key)


async def _delete_entry(name: str, entry: Entry, reader: ColdReader) -> None:
    """An index is deleted after the entries it lists. If it is missing, its entries can no longer be found."""
    if isinstance(entry, Segment):
        return await reader.segments.delete(segment_key(name, entry.plan))
    assert isinstance(entry, SegmentIndex)
    try:
        below = await reader.entries(name, entry)
    except SegmentMissing:
        below = ()
    for each in below:
        await _delete_entry(name, each, reader)
    await reader.segments.delete(index_key(name, entry))
