"""Recovery when a broker's storage node is gone for good: the metadata forgets the node and everything only it had.

The broker must be stopped: this opens the metadata directory as a broker would. What is in object storage stays.
Nothing is written before an operator has seen and accepted what is lost. After a crash it can be repeated.
"""

from __future__ import annotations

from typing import NamedTuple

from pydanube.base.errors import NodeDirectoryInvalid
from pydanube.base.ids import NodeIdentity
from pydanube.broker.directory.directory import Directory
from pydanube.metadata.tables import STORAGE_NODE
from pydanube.ports.catalog import RecordChange
from pydanube.ports.disk import Disk
from pydanube.ports.randomness import Randomness
from pydanube.storage.metadata.raft import RaftMetadata
from pydanube.storage.metadata.table import Table
from pydanube.storage.node.node_file import read_node_file
from pydanube.storage.stream.catalog import MetadataCatalog
from pydanube.stream.assignment import state_stream
from pydanube.stream.record import StreamRecord


class LostTopic(NamedTuple):
    """What a topic or partition has lost, besides its subscriptions and producers."""

    topic: str
    messages: int  # in sealed ledgers, and stored nowhere else
    more: bool  # a ledger was open, so an unknown number of messages is lost as well
    stored: int  # messages in object storage, which stay


class _OnlyLooking(Exception):
    """Stops the opening of the metadata before anything is written."""


async def forget_node(
    for_metadata: Disk, for_node: Disk, randomness: Randomness, *, accept: bool
) -> tuple[NodeIdentity, list[LostTopic]]:
    """Returns the node that the metadata names, and what is lost with it. With `accept`, the metadata forgets it."""
    found: list[tuple[NodeIdentity, list[LostTopic]]] = []

    async def look(metadata: RaftMetadata) -> None:
        identity = await _missing_node(metadata, for_node)
        found.append((identity, await _lost(metadata, identity)))
        if not accept:
            raise _OnlyLooking

    try:
        metadata = await RaftMetadata.open(for_metadata, randomness, approve=look)
    except _OnlyLooking:
        return found[0]
    try:
        await _forget(metadata, found[0][0])
    finally:
        await metadata.close()
    return found[0]


async def _missing_node(metadata: RaftMetadata, for_node: Disk) -> NodeIdentity:
    """The node that the metadata names. Raises unless its directory is empty or gone."""
    known, found = Table(metadata, STORAGE_NODE).get(), await read_node_file(for_node)
    if known is None or not known.boots:
        raise NodeDirectoryInvalid("the metadata names no storage node, so none can be lost; start the broker")
    if found is not None and found.identity == known.identity:
        raise NodeDirectoryInvalid(f"{for_node.name} still has storage node {known.identity}; it is not lost")
    if found is not None:
        raise NodeDirectoryInvalid(
            f"{for_node.name} has a different storage node, {found.identity}; move it away first"
        )
    return known.identity


async def _lost(metadata: RaftMetadata, identity: NodeIdentity) -> list[LostTopic]:
    catalog = MetadataCatalog(metadata)
    found: list[LostTopic] = []
    for record in Directory(metadata).everything():
        for name in record.partition_names() if record.reliable else ():
            stream = record.stream(name.partition)
            data, state = [(await catalog.load(each))[0] for each in (stream, state_stream(stream))]
            if _only_on(data, identity) or _only_on(state, identity):
                found.append(_lost_of(str(name), data, identity))
    return found


def _only_on(record: StreamRecord, identity: NodeIdentity) -> bool:
    return any(ledger.nodes == (identity,) for ledger in record.ledgers)


def _lost_of(topic: str, record: StreamRecord, identity: NodeIdentity) -> LostTopic:
    gone = [ledger for ledger in record.ledgers if ledger.nodes == (identity,) and not record.is_dead(ledger)]
    kept_from = max(record.kept_from, record.cold.end)
    messages = sum(max(0, ledger.last - max(ledger.first, kept_from) + 1) for ledger in gone)
    stored = max(0, record.cold.end - record.first) if record.cold.entries else 0
    return LostTopic(topic, messages, record.unsealed in gone, stored)


async def _forget(metadata: RaftMetadata, identity: NodeIdentity) -> None:
    """Removes the node last: until then a broker refuses to start, and this can be repeated."""
    catalog = MetadataCatalog(metadata)
    for stream in await catalog.streams():
        record, version = await catalog.load(stream)
        only_here = [ledger.id for ledger in record.ledgers if ledger.nodes == (identity,)]
        for part in record.ledgers.in_parts(only_here[1:-1]):  # the first and the last show what is lost
            before, record = record, record.without(part)
            version = await catalog.store([RecordChange(stream, record, version, before)], None)
        left = record.without_node(stream, identity)
        if left is not record:
            await catalog.store([RecordChange(stream, left, version, record)], None)
    node = Table(metadata, STORAGE_NODE)
    await node.replace("", node.version(), None, reserve=True)
