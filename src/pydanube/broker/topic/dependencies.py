"""What a topic needs of its broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pydanube.adapters.threads import ThreadOffload
from pydanube.broker.subscription.read_ahead_budget import ReadAheadBudget
from pydanube.ports.catalog import Catalog
from pydanube.ports.offload import Offload
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import StorageNodes
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.stream.cold import ColdTier
from pydanube.storage.stream.tail import TailCache
from pydanube.wire.batch import Batch

PublishElsewhere = Callable[[str, Batch], Awaitable[None]]  # to another topic; done when it is durable


@dataclass(frozen=True, slots=True)
class TopicDependencies:
    """The same for all topics of a broker."""

    catalog: Catalog
    nodes: StorageNodes
    clock: CheckedClock  # one for all topics of the process
    randomness: Randomness
    cache: TailCache
    publish: PublishElsewhere  # for dead letters
    tier: ColdTier | None = None  # where sealed messages go, if anywhere
    offload: Offload = field(default_factory=lambda: ThreadOffload(1))
    read_ahead: ReadAheadBudget = field(default_factory=ReadAheadBudget)
