"""What the parts of one disk node share. Owned by the node's event loop; replaced as a whole by recovery."""

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

BALLAST = "ballast.tmp"  # half a journal file of nothing: what a full disk throws off to be able to free more


class Ballast(Enum):
    """A start removes it, to have room for a file that takes deletions; the keeper lends it to one copy at a time."""

    GONE = "gone"
    HELD = "held"
    LENT = "lent"


@dataclass(slots=True)
class PinnedFiles:
    """Files that are neither removed nor reused while somebody copies them, whatever becomes of their ledgers."""

    changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held to remove a file, or to pin some
    generations: dict[int, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeDisks:
    """The directories of a node: one for the journal, and numbered ones for what is copied out of it."""

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
    """Everything in memory. Thrown away and rebuilt after a failed write."""

    disks: NodeDisks
    table: LedgerTable
    files: dict[int, StoredFile]  # the active one included
    cache: FileCache
    damage: list[Damage] = field(default_factory=list)
    generations: int = 0  # the last number given out
    full: bool = False  # there is no room for another journal file
    short: bool = False  # there soon will be none, says the broker: what is dead in files is worth more copying
    ballast: Ballast = Ballast.GONE
    recycled: list[str] = field(default_factory=list)  # journal files nobody needs, to be written over

    def take_generation(self) -> int:
        """A number for a new file, never given out twice: a roll and a copy may be under way at once."""
        self.generations = max(self.generations, *self.files) + 1
        return self.generations

    def release(self, ledger: Ledger) -> list[StoredFile]:
        """A deleted ledger needs its bytes no more; returns the files it leaves behind."""
        left = []
        for generation, size in ledger.files():
            file = self.files.get(generation)
            if file is not None:
                file.live -= size
                left.append(file)
        return left
