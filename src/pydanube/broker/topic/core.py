"""What the parts of a topic share: its name and options, its messages, its state, and its phase.

Owned by its topic. It only holds these together and says what each phase allows; the parts do the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from pydanube.base.errors import DanubeError, TopicClosed, TopicRecovering
from pydanube.base.limits import OFFSET_MAX
from pydanube.broker.state.log import StateLog
from pydanube.broker.state.options import TopicOptions
from pydanube.broker.topic.dependencies import TopicDependencies
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.storage.stream.stream import Stream
from pydanube.topic.state import TopicState

EVERYTHING = OFFSET_MAX + 1  # after every offset


class Phase(Enum):
    """A topic serves from when it is opened. Once closed, it stays closed."""

    SERVING = "serving"
    RECOVERING = "recovering"  # a write failed: until it is known which batches are stored, nothing is published
    CLOSED = "closed"


SERVING, RECOVERING, CLOSED = (
    Phase.SERVING,
    Phase.RECOVERING,
    Phase.CLOSED,
)  # constants, because looking up an enum member is slower


class TopicCore:
    """`changed` is called when more messages are confirmed, or with the error when a write failed."""

    def __init__(
        self,
        name: str,
        options: TopicOptions,
        dependencies: TopicDependencies,
        messages: Stream,
        state: Stream,
        changed: Callable[[BaseException | None], None],
    ) -> None:
        self.name = name
        self.options = options
        self.clock = dependencies.clock
        self.ledger = ManagedLedger(messages, dependencies.cache, changed)
        self.state = TopicState()
        self.state_stream = state
        self.log = StateLog(
            state, self.state, self.producers_end, options.state_compact_bytes, options.state_part_bytes
        )
        self.starting = asyncio.Lock()  # held while the start of a subscription, or what to delete, is decided
        self.pinned = False  # the messages are needed, regardless of their age
        self.phase: Phase = SERVING
        self._why_closed: DanubeError | None = None
        self._certain_end = EVERYTHING  # batches from here on may be missing from the log

    @property
    def lost(self) -> bool:
        """Whether another broker owns the topic now."""
        return self.ledger.stream.lost or self.state_stream.lost

    def check_open(self) -> None:
        """Raises if the topic is no longer served here."""
        if self._why_closed is not None:
            raise type(self._why_closed)(*self._why_closed.args)
        if self.lost:
            raise TopicClosed(f"this broker no longer serves {self.name}")

    def check_certain(self) -> None:
        """Raises unless it is known which batches are stored."""
        if self.phase is not SERVING or self.lost:
            self.check_open()
            raise TopicRecovering(f"{self.name} is recovering from a failed write")

    def producers_end(self) -> int:
        """The producers know every confirmed batch below this offset, so a snapshot of the state may claim it."""
        return min(self.ledger.written_end, self._certain_end)

    # -- the phase -----------------------------------------------------------------------------------------------------

    def begin_recovery(self) -> int:
        """Called when a write failed. Returns the end of the batches known to be written."""
        self.phase, self._certain_end = RECOVERING, self.ledger.written_end
        return self._certain_end

    def end_recovery(self) -> None:
        self._certain_end = EVERYTHING
        if self.phase is RECOVERING:
            self.phase = SERVING

    def close(self, why: DanubeError) -> None:
        """From now on, every call raises `why`."""
        self.phase, self._why_closed = CLOSED, why
