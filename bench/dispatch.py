"""What dispatching and acknowledging cost on one core: each subscription type, with a short and a long backlog.

A figure is the median of several runs. A round asks the cursor which messages of one batch are not acknowledged, offers
them, polls, and acknowledges what was delivered, in cursor and engine: ordered types by range, the others one by one.
To measure growth, the first message of the topic stays open, followed by a thousand or ten million acknowledged ones.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from figures import Figures
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import OFFSET_MAX
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Deliver, Effect, Run
from pydanube.dispatch.exclusive import Exclusive
from pydanube.dispatch.failover import Failover
from pydanube.dispatch.key_shared import KeyShared
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.dispatch.roster import Member
from pydanube.dispatch.shared import Shared
from pydanube.topic.cursor import Cursor
from pydanube.topic.records import Acked

BATCH = 1_000
CONSUMERS = 8
KEYS = [b"customer-%d" % (row * 7919 % 1_000) for row in range(BATCH)]
RUNS = 9
MESSAGES_ORDERED = 1_000_000
MESSAGES_SINGLE = 100_000
NEAR, FAR = 1_000, 10_000_000  # acknowledged messages before those that are delivered

Work = Callable[[Engine[Member], Cursor, int], None]


def connected(engine: Engine[Member], consumers: int) -> None:
    for consumer in range(1, consumers + 1):
        engine.join(ConsumerId(consumer), 0)


def ordered(engine: Engine[Member], cursor: Cursor, start: int, count: int) -> None:
    consumer = ConsumerId(1)
    for first in range(start, start + count, BATCH):
        engine.grant(consumer, BATCH, first)
        for run in cursor.pending(first, first + BATCH - 1):
            engine.offer(Run(*run), first)
        for effect in engine.poll(first):
            if isinstance(effect, Deliver):
                acknowledge(engine, cursor, effect.first, effect.last)


def singly(engine: Engine[Member], cursor: Cursor, start: int, count: int, keys: list[bytes] | None) -> None:
    for first in range(start, start + count, BATCH):
        for consumer in range(1, CONSUMERS + 1):
            engine.grant(ConsumerId(consumer), BATCH, first)
        for run in cursor.pending(first, first + BATCH - 1):
            engine.offer(Run(*run, keys), first)
        for effect in everything(engine, first):
            if isinstance(effect, Deliver):
                for offset in range(effect.first, effect.last + 1):
                    acknowledge(engine, cursor, offset, offset)


def everything(engine: Engine[Member], now: int) -> list[Effect]:
    """Polls until nothing is left to do now."""
    effects = engine.poll(now)
    while engine.unfinished:
        effects += engine.poll(now)
    return effects


def acknowledge(engine: Engine[Member], cursor: Cursor, first: int, last: int) -> None:
    record = cursor.decide_ack([(first, last)], OFFSET_MAX)
    assert record is not None
    cursor.replay(record)
    engine.acked(first, last)


def seconds(make: Callable[[], Engine[Member]], consumers: int, work: Work, start: int) -> float:
    engine, cursor = make(), Cursor(1)
    connected(engine, consumers)
    if start:
        cursor.replay(Acked(1, 0, ((1, start - 1),)))
    began = perf_counter()
    work(engine, cursor, start)
    spent = perf_counter() - began
    assert engine.in_flight == engine.waiting == 0
    return spent


def main(figures: Figures | None = None) -> None:
    alone = figures is None
    figures = figures or Figures()
    policy, settings = FailurePolicy(), DispatchSettings()

    def both(
        name: str, make: Callable[[], Engine[Member]], consumers: int, count: int, work: Work, goal: float
    ) -> None:
        assert figures is not None
        plain, near, far = [], [], []
        for _ in range(RUNS):  # in turns, so that a slow moment of the machine affects all of them
            plain.append(seconds(make, consumers, work, 0))
            near.append(seconds(make, consumers, work, NEAR))
            far.append(seconds(make, consumers, work, FAR))
        figures.report(f"dispatch: {name}, decided and acked", count / median(plain), "messages/s", goal)
        ratio = median(far) / median(near)
        figures.report(f"dispatch: {name}, backlog of 10 M versus 1 k", ratio, "times", 1.3, at_least=False)

    both(
        "exclusive",
        lambda: Exclusive(policy, settings),
        1,
        MESSAGES_ORDERED,
        lambda e, c, at: ordered(e, c, at, MESSAGES_ORDERED),
        50e6,
    )
    both(
        "failover",
        lambda: Failover(policy, settings),
        2,
        MESSAGES_ORDERED,
        lambda e, c, at: ordered(e, c, at, MESSAGES_ORDERED),
        50e6,
    )
    both(
        "shared",
        lambda: Shared(policy, settings),
        CONSUMERS,
        MESSAGES_SINGLE,
        lambda e, c, at: singly(e, c, at, MESSAGES_SINGLE, None),
        300e3,
    )
    both(
        "key-shared",
        lambda: KeyShared(policy, settings),
        CONSUMERS,
        MESSAGES_SINGLE,
        lambda e, c, at: singly(e, c, at, MESSAGES_SINGLE, KEYS),
        150e3,
    )
    if alone:
        figures.table()


if __name__ == "__main__":
    main()
