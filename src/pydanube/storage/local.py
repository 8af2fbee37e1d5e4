"""The storage of a broker that has its own: a metadata store, and the one storage node that it names.

The metadata holds the node's identity from before the node was made, the number of its last start, and that of the
start under way. A start that finds another node, none, or an older copy of either is refused before anything is made or
written: what such a node lacks proves nothing, and what was acknowledged would be forgotten for good.
"""

from __future__ import annotations

import asyncio
import json
import logging
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

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
from pydanube.ports.disk import Disk
from pydanube.ports.metadata import MetadataStore
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import StorageNode
from pydanube.storage.metadata.file import LocalMetadata
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.node_file import free_set_aside, read_node_file
from pydanube.storage.node.settings import NodeSettings
from pydanube.storage.stream.catalog import MetadataCatalog

log = logging.getLogger(__name__)
STORAGE_NODE = "storage-node"  # the key


@dataclass(frozen=True, slots=True)
class Registration:
    """What the metadata knows of its storage node."""

    identity: NodeIdentity
    boots: int  # of its last start; 0 before the first
    starting: int  # of the start under way, or the same: the node itself cannot have been started more often
    version: int = 0  # of the key


@dataclass(frozen=True, slots=True)
class LocalStorage:
    metadata: LocalMetadata
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
    """Both, or neither: what was opened is closed again if the rest fails."""

    boots = 0

    async def approve(metadata: LocalMetadata) -> None:
        nonlocal boots
        boots = await _refuse_if_missing(registration(metadata), for_metadata, for_node)

    async def begin() -> tuple[LocalMetadata, Registration]:
        metadata = await LocalMetadata.open(for_metadata, randomness, log_bytes=log_bytes, approve=approve)
        try:
            known = registration(metadata)
            if known is None:
                known = Registration(NodeIdentity(randomness.bytes(16).hex()), 0, 0)
            # durable before the node is made or started, so that none is ever there that the metadata does not know of
            return metadata, await _register(metadata, replace(known, starting=boots + 1))
        except BaseException:
            await metadata.close()
            raise

    try:
        metadata, known = await begin()
    except DiskFull as error:  # the node has room set aside that its own start would free, but that comes later
        log.warning(
            "the metadata has no room to record this start; freeing the space that the node has reserved: %s", error
        )
        await free_set_aside(for_node)
        metadata, known = await begin()
    try:
        node = await DiskNode.open([for_node], settings, randomness, identity=known.identity)
    except BaseException:
        await metadata.close()
        raise
    try:
        try:
            await _register(metadata, replace(known, boots=node.boots, starting=node.boots))
        except DiskFull as error:  # an older number refuses less, and wrongly refuses nothing
            log.warning("could not record this start of the storage node in the metadata: %s", error)
        catalog = MetadataCatalog(metadata)
        await node.meet_catalog(catalog.known(), catalog.next_ledger)
    except BaseException:
        await node.close()
        await metadata.close()
        raise
    return LocalStorage(metadata, node, catalog, LocalNodes(node))


async def _refuse_if_missing(known: Registration | None, for_metadata: Disk, for_node: Disk) -> int:
    """How often the node was started so far."""
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
        return 0  # the first start ended before it made the node
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


# -- what the metadata knows of the node -------------------------------------------------------------------------------


def registration(metadata: MetadataStore) -> Registration | None:
    entry = metadata.get(STORAGE_NODE)
    if entry is None:
        return None
    try:
        fields = json.loads(entry.value)
        identity, boots = NodeIdentity(str(fields["identity"])), int(fields["boots"])
        return Registration(identity, boots, int(fields["starting"]), entry.version)
    except (ValueError, TypeError, KeyError) as error:
        raise MetadataDamaged(f"{STORAGE_NODE!r} holds {entry.value[:100]!r}: {error!r}") from None


async def _register(metadata: MetadataStore, known: Registration) -> Registration:
    """If nobody else has meanwhile."""
    fields = {"identity": known.identity, "boots": known.boots, "starting": known.starting}
    value = json.dumps(fields, separators=(",", ":")).encode()
    version = await metadata.transact([(STORAGE_NODE, known.version)], [(STORAGE_NODE, value)])
    return replace(known, version=version)


# -- the nodes of a broker with one ------------------------------------------------------------------------------------


class LocalNodes:
    """The one storage node there is. A ledger on any other is on one that was replaced."""

    def __init__(self, node: DiskNode) -> None:
        self._node = node

    def get(self, identity: NodeIdentity) -> StorageNode:
        if identity == self._node.identity:
            return self._node
        return ReplacedNode(identity, self._node.identity)

    def choose(self, count: int, *, reserve: bool = False) -> list[NodeIdentity]:
        there, usable = self._node.ledgers, NODE_LEDGERS_MAX - NODE_LEDGERS_RESERVED
        if there >= usable and not reserve:
            raise TooManyLedgers(f"the broker has {there} ledgers; at most {usable} can be created for messages")
        return [self._node.identity]


class ReplacedNode:
    """Stands where a node was that is no longer there: it knows nothing, and what it lacks proves nothing."""

    in_order = False

    def __init__(self, identity: NodeIdentity, here: NodeIdentity) -> None:
        self.identity = identity
        self._here = here

    def __getattr__(self, operation: str) -> Callable[..., Future[Any]]:
        def refuse(*_: object) -> Future[Any]:
            answer: Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_exception(NodeReplaced(f"expected storage node {self.identity}, found {self._here}"))
            return answer

        return refuse
