"""The state that the parts of one disk node share. Owned by the node's event loop; recovery replaces all of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from pydanube.base.ids import NodeIdentity
from pydanube.journal.ledger_table import Ledger, LedgerTable
from pydanube.journal.scan import Damage
from pydanube.ports.disk import Disk
from pydanube.ports.randomness import Randomness
from pydanube.storage.guard import Guard
from pydanube.storage.node.files import FileCache, StoredFile
from pydanube.storage.node.node_file import Belongings
from pydanube.storage.node.settings import NodeSettings

BALLAST = "ballast.tmp"  # half a journal file of zeros: removed on a full disk to be able to free more


class Ballast(Enum):
    """Whether the ballast exists. A start removes it to have room for deletions; the keeper lends it to one copy."""

    GONE = "gone"
    HELD = "held"
    LENT = "lent"


@dataclass(slots=True)
class PinnedFiles:
    """Files that are neither removed nor reused while a backup copies them, even if their ledgers are deleted."""

    changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held to remove a file, or to pin some
    generations: dict[int, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeDisks:
    """The directories of a node: one for the journal, and numbered ones for data copied out of it."""

    journal: Disk
    data: dict[int, Disk]
    belongings: Belongings
    settings: NodeSettings
    randomness: Randomness
    pinned: PinnedFiles = field(default_factory=PinnedFiles)
    guard: Guard = field(default_factory=lambda: Guard("freeing journal files"))

    @property
    def identity(self) -> NodeIdentity:
        return self.belongings.node.identity


@dataclass(slots=True)
class NodeState:
    """Everything that the node has in memory. It is discarded and rebuilt after a failed write."""

    disks: NodeDisks
    table: LedgerTable
    files: dict[int, StoredFile]  # including the active one
    cache: FileCache
    damage: list[Damage] = field(default_factory=list)
    generations: int = 0  # the last number used
    full: bool = False  # there is no room for another journal file
    short: bool = False  # the broker reports that space is short, so more files are copied out
    ballast: Ballast = Ballast.GONE
    recycled: list[str] = field(default_factory=list)  # unneeded journal files, to be overwritten

    def take_generation(self) -> int:
        """A number for a new file, never used twice: a roll and a copy may be in progress at the same time."""
        self.generations = max(self.generations, *self.files) + 1
        return self.generations

    def release(self, ledger: Ledger) -> list[StoredFile]:
        """Releases the bytes of a deleted ledger; returns the files that held them."""
        left = []
        for generation, size in ledger.files():
            file = self.files.get(generation)
            if file is not None:
                file.live -= size
                left.append(file)
        return left
