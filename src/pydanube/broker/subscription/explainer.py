"""Why a message is not delivered, or why a consumer gets nothing: what the subscription knows of it.

Owned by its subscription. It only looks, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from pydanube.base.errors import ConsumerNotFound
from pydanube.base.ids import ConsumerId
from pydanube.broker.subscription.damage_notices import in_words
from pydanube.broker.subscription.lifetime import SEEKING, Lifetime
from pydanube.broker.subscription.reading_window import ReadingWindow
from pydanube.broker.subscription.sender import Sender
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.explain import Cause, Explanation
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.topic.state import Subscription


class Explainer:
    """Asks each part of the subscription in the order in which a message passes them, and the engine last."""

    __slots__ = ("_consumers", "_engine", "_known", "_ledger", "_lifetime", "_sender", "_window")

    def __init__(
        self,
        known: Subscription,
        engine: Engine[Any],
        ledger: ManagedLedger,
        window: ReadingWindow,
        sender: Sender,
        consumers: Container[ConsumerId],
        lifetime: Lifetime,
    ) -> None:
        self._known = known
        self._engine = engine
        self._ledger = ledger
        self._window = window
        self._sender = sender
        self._consumers = consumers
        self._lifetime = lifetime

    def explain(self, offset: int) -> Explanation:
        """Why this message is not being delivered."""
        cursor, next_offset = self._known.cursor, self._window.next_offset
        if offset < self._known.start and cursor.generation == 0:
            return Explanation(Cause.BELOW_START, offset=self._known.start)
        if offset >= self._ledger.confirmed_end:
            return Explanation(Cause.NOT_PUBLISHED)
        if not cursor.pending(offset, offset):
            return Explanation(Cause.ACKED)
        if next_offset <= offset and cursor.ceiling <= offset:
            return Explanation(Cause.CURSOR_FULL, offset=cursor.floor)
        waits = any(deliver.first <= offset <= deliver.last for deliver in self._sender.outbox)
        held_up = self.explain_reading()
        if held_up is not None and (waits or offset >= next_offset):
            return held_up
        if waits:
            return Explanation(Cause.READY)
        return self._engine.explain(offset, self._lifetime.now)

    def explain_consumer(self, consumer: ConsumerId) -> Explanation:
        """Why this consumer is given nothing now."""
        if consumer not in self._consumers:
            raise ConsumerNotFound(f"consumer {consumer} does not exist")
        cursor, next_offset = self._known.cursor, self._window.next_offset
        if cursor.ceiling <= next_offset < self._ledger.confirmed_end:
            return Explanation(Cause.CURSOR_FULL, offset=cursor.floor)
        return self.explain_reading() or self._engine.explain_consumer(consumer, self._lifetime.now)

    def explain_reading(self) -> Explanation | None:
        """What keeps everything that comes next from being read or handed out, if anything does."""
        if self._lifetime.state is SEEKING:
            return Explanation(Cause.SEEK_PENDING)
        error = self._window.failures.newest
        if error is not None and (self._window.reading or self._sender.fetching):
            return Explanation(Cause.UNREADABLE, what=in_words(error))
        if (damage := self._ledger.stream.damage_at(self._known.cursor.floor)) is not None:
            return Explanation(Cause.UNREADABLE, what=in_words(damage))
        throttle = self._sender.throttle
        if throttle is not None and self._lifetime.now < throttle.until:
            return Explanation(Cause.RATE_LIMITED, until=throttle.until)
        return None
