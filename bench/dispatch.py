"""What deciding and acknowledging cost on one core: each subscription type, and how far behind its cursor is.

A figure is the median of several runs. A round offers one batch, polls, and acknowledges what was delivered: ordered
types by range, the others message by message. Goals leave room for the cursor, whose work comes on top.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from figures import Figures
from pydanube.base.ids import ConsumerId
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Deliver, Run
from pydanube.dispatch.exclusive import Exclusive
from pydanube.dispatch.failover import Failover
from pydanube.dispatch.key_shared import KeyShared
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.dispatch.roster import Member
from pydanube.dispatch.shared import Shared

BATCH = 1_000
CONSUMERS = 8
KEYS = [b"customer-%d" % (row * 7919 % 1_000) for row in range(BATCH)]
RUNS = 9
MESSAGES_ORDERED = 1_000_000
MESSAGES_SINGLE = 100_000
HEADROOM = 1.4
NEAR, FAR = 1_000, 10_000_000  # messages between the start of the topic and what is delivered

Work = Callable[[Engine[Member], int], None]


def connected(engine: Engine[Member], consumers: int) -> None:
    for consumer in range(1, consumers + 1):
        engine.join(ConsumerId(consumer), 0)


def ordered(engine: Engine[Member], start: int, count: int) -> None:
    consumer = ConsumerId(1)
    for first in range(start, start + count, BATCH):
        engine.grant(consumer, BATCH, first)
        engine.offer(Run(first, first + BATCH - 1), first)
        for effect in engine.poll(first):
            if isinstance(effect, Deliver):
                engine.acked(effect.first, effect.last)


def singly(engine: Engine[Member], start: int, count: int, keys: list[bytes] | None) -> None:
    for first in range(start, start + count, BATCH):
        for consumer in range(1, CONSUMERS + 1):
            engine.grant(ConsumerId(consumer), BATCH, first)
        engine.offer(Run(first, first + BATCH - 1, keys), first)
        for effect in engine.poll(first):
            if isinstance(effect, Deliver):
                for offset in range(effect.first, effect.last + 1):
                    engine.acked(offset, offset)


def seconds(make: Callable[[], Engine[Member]], consumers: int, work: Work, start: int) -> float:
    engine = make()
    connected(engine, consumers)
    began = perf_counter()
    work(engine, start)
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
        near, far = [], []
        for _ in range(RUNS):  # by turns, so that a noisy moment of the machine falls on both
            near.append(seconds(make, consumers, work, NEAR))
            far.append(seconds(make, consumers, work, FAR))
        figures.report(f"dispatch: {name}, decided and acked", count / median(near), "messages/s", goal * HEADROOM)
        ratio = median(far) / median(near)
        figures.report(f"dispatch: {name}, far behind versus near", ratio, "times", 1.3, at_least=False)

    both(
        "exclusive",
        lambda: Exclusive(policy, settings),
        1,
        MESSAGES_ORDERED,
        lambda e, at: ordered(e, at, MESSAGES_ORDERED),
        50e6,
    )
    both(
        "failover",
        lambda: Failover(policy, settings),
        2,
        MESSAGES_ORDERED,
        lambda e, at: ordered(e, at, MESSAGES_ORDERED),
        50e6,
    )
    both(
        "shared",
        lambda: Shared(policy, settings),
        CONSUMERS,
        MESSAGES_SINGLE,
        lambda e, at: singly(e, at, MESSAGES_SINGLE, None),
        300e3,
    )
    both(
        "key-shared",
        lambda: KeyShared(policy, settings),
        CONSUMERS,
        MESSAGES_SINGLE,
        lambda e, at: singly(e, at, MESSAGES_SINGLE, KEYS),
        150e3,
    )
    if alone:
        figures.table()


if __name__ == "__main__":
    main()
