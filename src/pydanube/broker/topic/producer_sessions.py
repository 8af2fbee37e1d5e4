"""Which producers of a topic are connected here, and which temporary ones need not be remembered any longer.

It decides nothing about producers that applications named: these are remembered until there is no room.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pydanube.base.limits import PRODUCER_AWAY_SECONDS
from pydanube.topic.dedup import ProducerTable


class Session(NamedTuple):
    """A producer's claim to its name. A newer session fences it."""

    producer: int
    epoch: int
    next_sequence: int  # 0 if nothing was published under the name


class Sessions:
    """The sessions of one topic. Times are arguments, in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, int]] = {}  # epoch and number of connections, by producer
        self._away: dict[int, float] = {}  # temporary producers without a connection, and since when
        self._left: dict[int, int] = {}  # epochs of producers that will not come back

    def __contains__(self, producer: object) -> bool:
        return producer in self._held

    def hold(self, session: Session) -> None:
        epoch, times = self._held.get(session.producer, (session.epoch, 0))
        self._held[session.producer] = session.epoch, times + 1 if epoch == session.epoch else 1
        self._away.pop(session.producer, None)

    def let_go(self, session: Session) -> None:
        """The producer lost its connection, and may come back. It may even be back already under the same epoch: a
        producer that lost the answer to a renewal asks again over another connection."""
        epoch, times = self._held.get(session.producer, (0, 0))
        if epoch == session.epoch and times > 1:
            self._held[session.producer] = epoch, times - 1
        elif epoch == session.epoch:
            del self._held[session.producer]

    def release(self, session: Session) -> None:
        """The producer closed for good and need not be remembered."""
        self.let_go(session)
        self._left[session.producer] = session.epoch

    def take_gone(self, producers: ProducerTable, now: float) -> Iterator[int]:
        """Yields each producer that need not be remembered any longer, once. Called regularly."""
        left, self._left = self._left, {}
        for producer, epoch in left.items():
            if producer not in self._held and producers.has(producer, epoch):
                yield producer
        away, self._away = self._away, {}
        for producer in producers.temporary:
            if producer not in self._held and producer not in left:
                since = self._away[producer] = away.get(producer, now)
                if now - since >= PRODUCER_AWAY_SECONDS:
                    yield producer
