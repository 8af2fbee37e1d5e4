"""What outlives a broker: the topics of a world across all their owners, and what their clients remember."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from pydanube.base.durability import Durability
from pydanube.base.limits import SECOND
from pydanube.broker.state.options import TopicOptions
from pydanube.dispatch.policy import FailurePolicy, PoisonPolicy
from pydanube.sim.plan import Plan
from pydanube.sim.streams.broker import LEDGERS_LISTED
from pydanube.sim.topics.history import SubscriptionHistory, TopicHistory
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch

FOREVER_SECONDS = 100 * 365 * 86_400  # longer than any clock jumps
RETENTIONS: tuple[dict[str, int], ...] = (  # of topics whose ledgers go to object storage
    {"retention_seconds": FOREVER_SECONDS},
    {"retention_seconds": FOREVER_SECONDS},
    {"retention_seconds": 3},
    {"retention_bytes": 6_000},
)


@dataclass(slots=True)
class ProducerMemory:
    """What an idempotent producer remembers: its sequence, and the unanswered batch."""

    name: str
    next_sequence: int = 0
    pending: Batch | None = None  # without a producer id, which the topic assigns

    def answered(self, batch: Batch) -> None:
        self.next_sequence = max(self.next_sequence, batch.first_sequence + batch.count)
        if self.pending is not None and self.pending.first_sequence == batch.first_sequence:
            self.pending = None


@dataclass(slots=True)
class TopicMemory:
    """One topic of the world across all its owners, and what its clients remember."""

    history: TopicHistory
    durability: Durability
    policies: dict[str, Any]
    failure: FailurePolicy
    producers: list[ProducerMemory]
    consumers: int  # per subscription
    stream: str = ""  # where its messages are; known once it is created
    sent: int = 0
    dead_letters_down: bool = False
    letters: set[tuple[int, str, int, int]] = field(default_factory=set)  # instance, subscription, generation, offset
    departed: list[str] = field(default_factory=list)  # short-lived producers that left the present owner
    subscriptions: dict[str, SubscriptionHistory] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.history.name

    @property
    def keeps_everything(self) -> bool:
        return self.policies.get("retention_seconds") == FOREVER_SECONDS


def memory_for(plan: Plan, name: str, durability: Durability) -> TopicMemory:
    draw = Random(f"{plan.profile}/{plan.seed}/{name}")
    history = TopicHistory(name)
    poison = "poison" in plan.traits
    failure = FailurePolicy(
        max_redelivery_count=2 if poison else 1000,
        ack_timeout=draw.choice((1 * SECOND, 3 * SECOND)),
        base_delay=50_000,
        max_delay=500_000,
        poison=PoisonPolicy.DEAD_LETTER if poison else PoisonPolicy.BLOCK,
        dead_letter_topic=f"{name}-dead" if poison else None,
    )
    policies: dict[str, Any] = {}
    if "retention" in plan.traits and draw.random() < 0.5:
        policies["retention_seconds"] = 1
    if "tier" in plan.traits:
        policies = dict(Random(f"{plan.profile}/{plan.seed}/{name}/keep").choice(RETENTIONS))
    if "ttl" in plan.traits and draw.random() < 0.5:
        policies["ttl_seconds"] = 3
    history.expires = "ttl_seconds" in policies
    producers = [ProducerMemory(f"p{number}") for number in range(draw.choice((1, 2)))]
    memory = TopicMemory(history, durability, policies, failure, producers, consumers=draw.choice((1, 2, 3)))
    timeout = 0.65 * (failure.ack_timeout or 0) / SECOND  # less, for a fast clock and a delivery that waited for a read
    for kind in SubscriptionKind:
        label = kind.name.lower()
        memory.subscriptions[label] = SubscriptionHistory(history, label, kind, timeout)
    return memory


def defaults_of(plan: Plan) -> TopicOptions:
    """The sizes that no policy sets, the same for all topics: small, so that everything rolls all the time."""
    draw = Random(f"{plan.profile}/{plan.seed}/sizes")
    small = "small_parts" in plan.traits
    return TopicOptions(
        copies=plan.copies,
        ledger_bytes=plan.ledger_bytes,
        ledger_seconds=draw.choice((0.5, 60.0)),
        ledgers_listed=LEDGERS_LISTED,
        state_compact_bytes=4_000 if small else None,
        state_part_bytes=100 if small else None,
    )
