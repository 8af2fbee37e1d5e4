"""Tells consumers of damage that keeps their subscription from reading on, and when that is over.

Owned by the subscription. Waiting does not mend damage, and without a notice its consumers would wait in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydanube.base.errors import DanubeError, OffsetsDamaged, SegmentDamaged, SegmentMissing
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import DAMAGE_NOTICE_SECONDS, SECOND
from pydanube.broker.subscription.delivery import Consumer
from pydanube.broker.subscription.lifetime import Lifetime

DAMAGE = (OffsetsDamaged, SegmentDamaged, SegmentMissing)  # errors that do not go away by waiting
REPEATED = DAMAGE_NOTICE_SECONDS * SECOND


class DamageNotices:
    """For the `consumers` that wait for what comes next, as `waits` says of each."""

    __slots__ = ("_consumers", "_lifetime", "_notified", "_waits")

    def __init__(
        self, consumers: Mapping[ConsumerId, Consumer], waits: Callable[[ConsumerId], bool], lifetime: Lifetime
    ) -> None:
        self._consumers = consumers
        self._waits = waits
        self._lifetime = lifetime
        self._notified: dict[ConsumerId, int] = {}  # and when, in microseconds

    def withdraw(self) -> None:
        """Reading may continue: tells the consumers that were notified."""
        notified, self._notified = self._notified, {}
        for consumer in list(self._consumers.values()) if notified else ():
            if consumer.id in notified:
                consumer.sink.unreadable(None)

    def send(self, error: DanubeError) -> None:
        """Notifies the consumers that wait, unless that was done a moment ago."""
        if not isinstance(error, DAMAGE):
            return
        now, before = self._lifetime.now, self._notified
        consumers = list(self._consumers.values())
        self._notified = {each.id: before[each.id] for each in consumers if each.id in before}
        for consumer in consumers:
            notified = before.get(consumer.id)
            if (notified is None or now - notified >= REPEATED) and self._waits(consumer.id):
                self._notified[consumer.id] = now
                consumer.sink.unreadable(error)


def in_words(error: Exception) -> str:
    """The error, without a full stop, and with its advice if waiting does not help."""
    if not isinstance(error, DanubeError):
        return f"{type(error).__name__}: {error}"
    return str(error) if error.retriable else f"{error}. {error.help}".removesuffix(".")
