"""What keeps a subscription from reading on although waiting does not help: who is told, how often, and in which words.

Owned by the subscription. Whoever waits for messages would wait in silence otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pydanube.base.errors import DanubeError, OffsetsDamaged, SegmentDamaged, SegmentMissing
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import HINDRANCE_TOLD_SECONDS, SECOND
from pydanube.broker.subscription.delivery import Consumer

DAMAGE = (OffsetsDamaged, SegmentDamaged, SegmentMissing)  # what no waiting mends
REPEATED = HINDRANCE_TOLD_SECONDS * SECOND


class Hindrance:
    """`waits` says of a consumer whether it would get what comes next; `consumers` and `now` are the subscription's."""

    def __init__(
        self, consumers: Callable[[], Iterable[Consumer]], waits: Callable[[ConsumerId], bool], now: Callable[[], int]
    ) -> None:
        self._consumers = consumers
        self._waits = waits
        self._now = now
        self._told: dict[ConsumerId, int] = {}  # and when, in microseconds

    def over(self) -> None:
        """It may go on: whoever was told otherwise hears of it."""
        told, self._told = self._told, {}
        for consumer in list(self._consumers()) if told else ():
            if consumer.id in told:
                consumer.sink.hindered(None)

    def tell(self, error: DanubeError) -> None:
        """Tells those who wait, unless they were told a moment ago."""
        if not isinstance(error, DAMAGE):
            return
        now, before = self._now(), self._told
        consumers = list(self._consumers())
        self._told = {each.id: before[each.id] for each in consumers if each.id in before}
        for consumer in consumers:
            told = before.get(consumer.id)
            if (told is None or now - told >= REPEATED) and self._waits(consumer.id):
                self._told[consumer.id] = now
                consumer.sink.hindered(error)


def in_words(error: Exception) -> str:
    """With what to do where waiting does not help, and without the full stop."""
    if not isinstance(error, DanubeError):
        return f"{type(error).__name__}: {error}"
    return str(error) if error.retriable else f"{error}. {error.help}".removesuffix(".")
