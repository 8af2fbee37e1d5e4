"""Why a message is not delivered, or why a consumer gets nothing, as far as the subscription knows.

Owned by its subscription. It only reads, and changes nothing.
"""

from __future__ import annotations

from pydanube.base.errors import ConsumerNotFound
from pydanube.base.ids import ConsumerId
from pydanube.broker.subscription.core import SubscriptionCore
from pydanube.broker.subscription.lifetime import SEEKING
from pydanube.broker.subscription.read_failures import in_words
from pydanube.broker.subscription.reading_window import ReadingWindow
from pydanube.broker.subscription.sender import Sender
from pydanube.dispatch.explain import Cause, Explanation


class Explainer:
    """Asks each part of the subscription in the order in which a message passes them, and the engine last."""

    __slots__ = ("_core", "_sender", "_window")

    def __init__(self, core: SubscriptionCore, window: ReadingWindow, sender: Sender) -> None:
        self._core = core
        self._window = window
        self._sender = sender

    def explain(self, offset: int) -> Explanation:
        """Why this message is not being delivered."""
        core = self._core
        cursor, next_offset = core.known.cursor, self._window.next_offset
        if offset < core.known.start and cursor.generation == 0:
            return Explanation(Cause.BELOW_START, offset=core.known.start)
        if offset >= core.ledger.confirmed_end:
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
        return core.engine.explain(offset, core.lifetime.now)

    def explain_consumer(self, consumer: ConsumerId) -> Explanation:
        """Why this consumer gets nothing now."""
        core = self._core
        if consumer not in core.consumers:
            raise ConsumerNotFound(f"consumer {consumer} does not exist")
        cursor, next_offset = core.known.cursor, self._window.next_offset
        if cursor.ceiling <= next_offset < core.ledger.confirmed_end:
            return Explanation(Cause.CURSOR_FULL, offset=cursor.floor)
        return self.explain_reading() or core.engine.explain_consumer(consumer, core.lifetime.now)

    def explain_reading(self) -> Explanation | None:
        """What prevents all further messages from being read or delivered, if anything does."""
        core = self._core
        if core.lifetime.state is SEEKING:
            return Explanation(Cause.SEEK_PENDING)
        error = self._window.failures.newest
        if error is not None and (self._window.reading or self._sender.fetching):
            return Explanation(Cause.UNREADABLE, what=in_words(error))
        if (damage := core.ledger.stream.damage_at(core.known.cursor.floor)) is not None:
            return Explanation(Cause.UNREADABLE, what=in_words(damage))
        throttle = self._sender.throttle
        if throttle is not None and core.lifetime.now < throttle.until:
            return Explanation(Cause.RATE_LIMITED, until=throttle.until)
        return None
