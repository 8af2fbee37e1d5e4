"""A slow, obvious model of all reliable engines: one record per message, one rule per line. Engines must agree with it.

The model does not choose who gets which message. It checks every delivery against the rules, and that everything was
delivered that could be.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pydanube.base.ids import ConsumerId
from pydanube.dispatch.events import Deliver, Effect, Poisoned, Skipped
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy, PoisonPolicy, Unmatched
from pydanube.dispatch.ring import ring_hash
from pydanube.topic.records import SubscriptionKind

Filters = tuple[bytes, ...]


@dataclass
class Message:
    offset: int
    key: bytes
    time: int = 0  # not before
    failures: int = 0
    new: bool = True  # never delivered
    holder: ConsumerId | None = None  # in flight with
    deadline: int | None = None
    poison: bool = False
    owed_to: ConsumerId | None = None  # rewound by a nack: goes to the same consumer
    owed_until: int | None = None  # and until when


@dataclass
class Model:
    kind: SubscriptionKind
    policy: FailurePolicy
    settings: DispatchSettings
    messages: dict[int, Message] = field(default_factory=dict)  # offered and not done, ascending
    permits: dict[ConsumerId, int] = field(default_factory=dict)  # in the order of joining
    filters: dict[ConsumerId, Filters] = field(default_factory=dict)
    paused: bool = False
    poison_times: dict[int, int] = field(default_factory=dict)  # when a Poisoned must come
    poison_failures: dict[int, int] = field(default_factory=dict)

    # -- events

    def add(self, offset: int, key: bytes, time: int) -> None:
        self.messages[offset] = Message(offset, key, time)

    def nack(self, consumer: ConsumerId, first: int, last: int, now: int, delay: int) -> None:
        failed = [m for m in self.flight() if m.holder == consumer and first <= m.offset <= last]
        self.fail(failed, now, delay, keep=True)
        self.keep(failed, now)

    def keep(self, rewound: list[Message], now: int) -> None:
        """Keeps rewound keys for their consumers for one ack timeout."""
        keys = [m.key for m in rewound]
        for message in self.messages.values():
            if message.owed_to is not None and message.key in keys and self.policy.ack_timeout is not None:
                message.owed_until = now + self.policy.ack_timeout

    def fail(self, failed: list[Message], now: int, delay: int, *, keep: bool) -> None:
        for message in failed:
            message.failures += 1
            message.time = now + self.policy.delay(message.failures, delay)
            self.exhaust(message, now)
        for message in failed:
            for other in self.flight():
                if self.follows(other, message):
                    other.owed_to = other.holder if keep else None
                    other.holder = None
            message.holder = None if self.follows(message, message) else message.holder

    def undelivered(self, consumer: ConsumerId, first: int, last: int, now: int) -> None:
        """These messages, and those they rewind, were not handed out; nothing failed."""
        gone = [m for m in self.flight() if m.holder == consumer and first <= m.offset <= last]
        for message in gone:
            for other in self.flight():
                if self.follows(other, message):
                    other.owed_to, other.holder = other.holder, None
        self.keep(gone, now)
        self.permits[consumer] += last - first + 1

    def follows(self, other: Message, message: Message) -> bool:
        """Whether a failure of `message` rewinds `other`."""
        if self.kind is SubscriptionKind.SHARED:
            return other is message
        same = self.kind is not SubscriptionKind.KEY_SHARED or other.key == message.key
        return same and other.offset >= message.offset

    def exhaust(self, message: Message, now: int) -> None:
        if message.failures > self.policy.max_redelivery_count:
            message.poison = True
            if self.policy.poison is not PoisonPolicy.BLOCK:
                self.poison_times[message.offset] = now

    def leave(self, consumer: ConsumerId, now: int, *, crashed: bool) -> None:
        self.permits.pop(consumer, None)
        self.filters.pop(consumer, None)
        seen: list[bytes] = []
        for message in [m for m in self.flight() if m.holder == consumer]:
            first = (
                self.kind is SubscriptionKind.SHARED
                or (self.kind is SubscriptionKind.KEY_SHARED and message.key not in seen)
                or not seen
            )
            if crashed and first:
                message.failures += 1
                message.time = now
                self.exhaust(message, now)
            seen.append(message.key)
            message.holder = None
            message.time = now if self.kind is SubscriptionKind.SHARED else message.time
        for message in self.messages.values():
            if message.owed_to == consumer:
                message.owed_to = None

    def time_out(self, now: int) -> None:
        seen: list[bytes] = []
        for message in list(self.flight()):
            if message.holder is None or message.deadline is None or message.deadline > now:
                continue
            if self.kind is SubscriptionKind.KEY_SHARED:
                if message.key in seen:
                    continue
                seen.append(message.key)
                if not all(self.overdue(m, now) for m in self.flight() if m.key == message.key):
                    continue  # its holder may still acknowledge the others in time
                for other in self.messages.values():
                    other.owed_to = None if other.key == message.key else other.owed_to
            self.fail([message], now, 0, keep=False)
        self.release(now)

    def release(self, now: int) -> None:
        """Releases keys that were kept long enough, unless their consumer has messages of them in flight."""
        due = {m.key for m in self.messages.values() if m.owed_until is not None and m.owed_until <= now}
        held = {m.key for m in self.flight()}
        for message in self.messages.values():
            if message.key in due:
                message.owed_until = None
                message.owed_to = message.owed_to if message.key in held else None

    def overdue(self, message: Message, now: int) -> bool:
        return message.holder is not None and message.deadline is not None and message.deadline <= now

    def alter(self, policy: FailurePolicy, settings: DispatchSettings, now: int) -> None:
        before, self.policy, self.settings = self.policy.poison, policy, settings
        for message in self.flight():
            if not self.overdue(message, now):
                message.deadline = None if policy.ack_timeout is None else now + policy.ack_timeout
        self.poison_failures.clear()
        if policy.poison is PoisonPolicy.BLOCK:
            self.poison_times.clear()
        elif before is PoisonPolicy.BLOCK:
            self.poison_times = {m.offset: now for m in self.messages.values() if m.poison}
        else:
            self.poison_times = dict.fromkeys(self.poison_times, now)

    def poison_failed(self, offset: int, now: int) -> None:
        if self.policy.poison is PoisonPolicy.BLOCK:
            return
        if offset in self.messages and self.messages[offset].poison and offset not in self.poison_times:
            self.poison_failures[offset] = self.poison_failures.get(offset, 0) + 1
            self.poison_times[offset] = now + max(100_000, self.policy.delay(self.poison_failures[offset]))

    def acked(self, first: int, last: int) -> None:
        for offset in [offset for offset in self.messages if first <= offset <= last]:
            del self.messages[offset]
            self.poison_times.pop(offset, None)
            self.poison_failures.pop(offset, None)

    # -- state

    def flight(self) -> list[Message]:
        return [m for m in self.messages.values() if m.holder is not None]

    def owner(self, key: bytes) -> ConsumerId | None:
        accepting = [c for c in self.permits if not self.filters[c] or any(glob(f, key) for f in self.filters[c])]
        points = sorted((ring_hash(b"%d-%d" % (c, i)), c) for c in accepting for i in range(100))
        after = [c for value, c in points if value >= ring_hash(key)]
        return (after or [c for _, c in points] or [None])[0]

    def room(self) -> int:
        if self.kind is SubscriptionKind.SHARED:
            return self.settings.unacked_max - sum(1 for m in self.messages.values() if not m.new)
        return self.settings.unacked_max - len(self.flight())

    def refusal(self, message: Message, consumer: ConsumerId, now: int) -> str | None:
        """Why the message may not go to the consumer now."""
        if self.paused or not self.permits.get(consumer):
            return "paused or no permits"
        if message.holder is not None or message.poison or message.time > now:
            return "in flight, poison or too early"
        if (message.new or self.kind is not SubscriptionKind.SHARED) and self.room() <= 0:
            return "window full"
        earlier = [m for m in self.messages.values() if m.offset < message.offset]
        if self.kind is SubscriptionKind.SHARED:
            blocked = self.policy.poison is PoisonPolicy.BLOCK and any(m.poison for m in self.messages.values())
            return "blocked" if blocked and message.new else None
        if self.kind is not SubscriptionKind.KEY_SHARED:
            if consumer != next(iter(self.permits)):
                return "not the active one"
            return "overtakes" if any(m.holder is None for m in earlier) else None
        same = [m for m in earlier if m.key == message.key]
        if any(m.holder is None for m in same):
            return "overtakes"
        if any(self.overdue(m, now) for m in self.flight() if m.key == message.key):
            return "its holder did not acknowledge in time"
        if message.owed_to is not None:
            return None if consumer == message.owed_to else "owed to its holder"
        if any(m.holder != consumer for m in same):
            return "key held by another"
        return None if consumer == self.owner(message.key) else "not the owner"

    # -- checks of the engine

    def check(self, effects: list[Effect], now: int) -> None:
        poisoned = [effect.offset for effect in effects if isinstance(effect, Poisoned)]
        assert sorted(poisoned) == sorted(offset for offset, time in self.poison_times.items() if time <= now)
        for offset in poisoned:
            del self.poison_times[offset]
        for effect in effects:
            if isinstance(effect, Poisoned):
                assert effect.attempts == self.messages[effect.offset].failures
            elif isinstance(effect, Skipped):
                self.skip(effect)
            else:
                self.deliver(effect, now)
        left = [
            (message.offset, consumer)
            for message in self.messages.values()
            for consumer in self.permits
            if self.refusal(message, consumer, now) is None
        ]
        assert left == [], "these could have been delivered"

    def skip(self, effect: Skipped) -> None:
        assert self.settings.unmatched is Unmatched.SKIP
        for offset in range(effect.first, effect.last + 1):
            del self.messages[offset]

    def deliver(self, effect: Deliver, now: int) -> None:
        for offset in range(effect.first, effect.last + 1):
            message = self.messages[offset]
            assert self.refusal(message, effect.consumer, now) is None, (effect, offset)
            assert message.failures == effect.attempt
            message.holder, message.new, message.owed_to = effect.consumer, False, None
            message.owed_until = None
            message.deadline = None if self.policy.ack_timeout is None else now + self.policy.ack_timeout
            self.permits[effect.consumer] -= 1


def glob(pattern: bytes, key: bytes) -> bool:
    if not pattern:
        return not key
    if pattern[:1] == b"*":
        return any(glob(pattern[1:], key[at:]) for at in range(len(key) + 1))
    return bool(key) and pattern[:1] in (b"?", key[:1]) and glob(pattern[1:], key[1:])
