"""What a topic needs from its broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pydanube.adapters.threads import ThreadOffload
from pydanube.broker.state.options import TopicOptions
from pydanube.broker.subscription.reading_window import ReadAheadBudget
from pydanube.ports.catalog import Catalog
from pydanube.ports.offload import Offload
from pydanube.ports.storage import StorageNodes
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.stream.cold import ColdReader, ColdTier
from pydanube.storage.stream.tail import TailCache
from pydanube.wire.batch import Batch


class LetterSource(NamedTuple):
    """Where a dead letter comes from."""

    topic: str
    subscription: str
    chosen: bool  # a caller who may publish to the dead-letter topic has named it


PublishElsewhere = Callable[[str, Batch, LetterSource], Awaitable[None]]  # to another topic; done when it is durable


@dataclass(frozen=True, slots=True)
class TopicDependencies:
    """The same for all topics of a broker."""

    catalog: Catalog
    nodes: StorageNodes
    clock: CheckedClock  # one for all topics of the process
    cache: TailCache
    publish: PublishElsewhere  # for dead letters
    tier: ColdTier | None = None  # where sealed messages go, if object storage is configured
    offload: Offload = field(default_factory=lambda: ThreadOffload(1))
    read_ahead: ReadAheadBudget = field(default_factory=ReadAheadBudget)
    defaults: TopicOptions = field(default_factory=TopicOptions)  # copies and sizes, which no policy sets

    @property
    def cold(self) -> ColdReader | None:
        return None if self.tier is None else self.tier.reader
