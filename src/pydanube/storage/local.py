"""The storage of a broker on its own disks: a metadata store, and the one storage node that belongs to it.

The metadata has the node's identity from before the node was created, the number of its last start, and the number of
the start in progress. A start that finds another node, no node, or an old copy of either is refused before anything is
created or written: such a node would deny that acknowledged messages ever existed.
"""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from pydanube.base.errors import (
    DiskFull,
    MetadataDamaged,
    MetadataOutdated,
    NodeDirectoryInvalid,
    NodeReplaced,
    TooManyLedgers,
)
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import METADATA_LOG_BYTES, NODE_LEDGERS_MAX, NODE_LEDGERS_RESERVED
from pydanube.metadata.tables import STORAGE_NODE, Registration
from pydanube.ports.disk import Disk
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import StorageNode
from pydanube.storage.futures import refused
from pydanube.storage.metadata.raft import RaftMetadata
from pydanube.storage.metadata.table import Table
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.node_file import free_set_aside, read_node_file
from pydanube.storage.node.settings import NodeSettings
from pydanube.storage.stream.catalog import MetadataCatalog

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalStorage:
    metadata: RaftMetadata
    node: DiskNode
    catalog: MetadataCatalog
    nodes: LocalNodes


async def open_local(
    for_metadata: Disk,
    for_node: Disk,
    settings: NodeSettings,
    randomness: Randomness,
    *,
    log_bytes: int = METADATA_LOG_BYTES,
) -> LocalStorage:
    """Opens both or neither: if one fails, the other is closed again."""

    boots = 0

    async def approve(metadata: RaftMetadata) -> None:
        nonlocal boots
        known = Table(metadata, STORAGE_NODE).get()
        boots = await _refuse_if_missing(known, for_metadata, for_node)

    async def begin() -> tuple[RaftMetadata, Registration, int]:
        metadata = await RaftMetadata.open(for_metadata, randomness, log_bytes=log_bytes, approve=approve)
        try:
            table = Table(metadata, STORAGE_NODE)
            known = table.get() or Registration(NodeIdentity(randomness.bytes(16).hex()), 0, 0)
            known = replace(known, starting=boots + 1)
            # durable before the node is created or started, so that the metadata knows every node that exists
            return metadata, known, await table.replace("", table.version(), known)
        except BaseException:
            await metadata.close()
            raise

    try:
        metadata, known, version = await begin()
    except DiskFull as error:  # the node has reserved space, which its own start would free only later
        log.warning(
            "the metadata has no room to record this start; freeing the space that the node has reserved: %s", error
        )
        await free_set_aside(for_node)
        metadata, known, version = await begin()
    try:
        node = await DiskNode.open([for_node], settings, randomness, identity=known.identity)
    except BaseException:
        await metadata.close()
        raise
    try:
        try:
            started = replace(known, boots=node.boots, starting=node.boots)
            await Table(metadata, STORAGE_NODE).replace("", version, started)
        except DiskFull as error:  # an older number makes the check weaker, but never refuses wrongly
            log.warning("could not record this start of the storage node in the metadata: %s", error)
        catalog = MetadataCatalog(metadata)
        await node.reconcile_with_catalog(catalog.known(), catalog.next_ledger)
    except BaseException:
        await node.close()
        await metadata.close()
        raise
    return LocalStorage(metadata, node, catalog, LocalNodes(node))


async def _refuse_if_missing(known: Registration | None, for_metadata: Disk, for_node: Disk) -> int:
    """Returns how often the node was started so far."""
    found = await read_node_file(for_node)
    if known is None:
        if found is not None:
            raise MetadataDamaged(
                f"{for_metadata.name} is missing or empty, but {for_node.name} has storage node {found.identity}; "
                "mount or restore the metadata"
            )
        return 0
    if found is None:
        if known.boots:
            raise NodeDirectoryInvalid(
                f"{for_node.name} is missing or empty, but should have storage node {known.identity}; "
                "mount or restore it, or see `danube storage forget-node` if it is gone for good"
            )
        return 0  # the first start ended before it created the node
    if found.identity != known.identity:
        raise NodeDirectoryInvalid(
            f"{for_node.name} has storage node {found.identity}, but the metadata in {for_metadata.name} belongs to "
            f"{known.identity}"
        )
    if found.boots < known.boots:
        raise NodeDirectoryInvalid(
            f"{for_node.name} is an old copy: it records {found.boots} starts, but the metadata records "
            f"{known.boots}; restore the newest copy"
        )
    if found.boots > known.starting:
        raise MetadataOutdated(
            f"{for_metadata.name} is an old copy: it records {known.starting} starts of node {known.identity}, "
            f"but {for_node.name} records {found.boots}; restore the newest metadata, or both directories "
            "from the same backup"
        )
    return found.boots


# -- the nodes of a broker with one ------------------------------------------------------------------------------------


class LocalNodes:
    """The only storage node. Any other identity belongs to a node that was replaced."""

    def __init__(self, node: DiskNode) -> None:
        self._node = node

    def get(self, identity: NodeIdentity) -> StorageNode:
        if identity == self._node.identity:
            return self._node
        return ReplacedNode(identity, self._node.identity)

    def choose(self, count: int, *, reserve: bool = False) -> list[NodeIdentity]:
        ledgers, usable = self._node.ledgers, NODE_LEDGERS_MAX - NODE_LEDGERS_RESERVED
        if ledgers >= usable and not reserve:
            raise TooManyLedgers(f"the broker has {ledgers} ledgers; at most {usable} can be created for messages")
        return [self._node.identity]


class ReplacedNode:
    """Answers for a node that no longer exists: every call fails with `NodeReplaced`."""

    in_order = False

    def __init__(self, identity: NodeIdentity, here: NodeIdentity) -> None:
        self.identity = identity
        self._here = here

    def __getattr__(self, operation: str) -> Callable[..., Future[Any]]:
        return lambda *_: refused(NodeReplaced(f"expected storage node {self.identity}, found {self._here}"))
