"""A small host around an engine, for readable tests."""

from __future__ import annotations

from pydanube.base.ids import ConsumerId
from pydanube.base.limits import SECOND
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Effect, Run
from pydanube.dispatch.policy import FailurePolicy, PoisonPolicy
from pydanube.dispatch.roster import M

A, B, C = ConsumerId(1), ConsumerId(2), ConsumerId(3)
DROP = FailurePolicy(poison=PoisonPolicy.DROP)
ONCE = FailurePolicy(max_redelivery_count=0)
ONCE_DROP = FailurePolicy(max_redelivery_count=0, poison=PoisonPolicy.DROP)
ONCE_DEAD = FailurePolicy(max_redelivery_count=0, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="dead")
DELAY = SECOND  # after the first failure, by default


def connect(engine: Engine[M], permits: int, *consumers: ConsumerId) -> None:
    for consumer in consumers:
        engine.join(consumer, 0)
        if permits:
            engine.grant(consumer, permits, 0)


def offer(engine: Engine[M], first: int, last: int, keys: str = "", now: int = 0) -> list[Effect]:
    """Offers a run and polls. `keys` has one letter per message."""
    engine.offer(Run(first, last, [key.encode() for key in keys] or None), now)
    return engine.poll(now)
