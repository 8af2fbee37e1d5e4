"""The options of topics and subscriptions, and how those of a subscription are stored."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from hashlib import blake2b
from typing import Any, TypeVar

from pydanube.base.durability import Durability
from pydanube.base.errors import PolicyInvalid, SubscriptionOptionInvalid
from pydanube.base.fields import Fields, listed, shown
from pydanube.base.limits import LEDGERS_LISTED_MAX, MIB, SECOND, TOPIC_NAME_CHARACTERS_MAX
from pydanube.base.names import TopicName, full_name
from pydanube.base.units import microseconds_of
from pydanube.broker.limits.quotas import BacklogQuota
from pydanube.dispatch.policy import ACK_TIMEOUT_DEFAULT, DispatchSettings, FailurePolicy, PoisonPolicy
from pydanube.stream.record import Copies
from pydanube.stream.retention import RetentionPolicy
from pydanube.topic.records import SubscriptionKind
from pydanube.topic.state import TopicState

DEAD_LETTERS = "-dlq"  # behind the names of the topic and the subscription
_NOT_OF_NAMES = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)
DURATIONS = ("ack_timeout", "base_delay", "max_delay")  # of failure: seconds, or text such as 250ms
OPTIONS = ("failure", "dispatch", "idle_seconds", "holds_only")
_HOLDS_ONLY = b'"holds_only":true'  # as `encode` writes it: looked for without decoding all options at every turn
Section = TypeVar("Section", FailurePolicy, DispatchSettings)


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Options of one topic. The defaults are those of §19 to §21."""

    durability: Durability = Durability.FSYNC
    copies: Copies = field(default_factory=Copies)
    retention: RetentionPolicy | None = None  # None: forever without subscriptions, until acked by all with some
    ttl_seconds: int | None = None
    backlog: BacklogQuota | None = None
    dispatch_messages_per_second: int | None = None  # to each subscription
    dispatch_bytes_per_second: int | None = None
    unused_subscription_seconds: int | None = None  # of a best-effort topic; None is the default of those
    table: str | None = None  # the format of the table that its segments form: "delta"
    ledger_bytes: int = 256 * MIB
    ledger_seconds: float = 4 * 3600.0
    ledgers_listed: int = LEDGERS_LISTED_MAX  # in a stream's record, the others in pages
    state_compact_bytes: int | None = None  # of its state log between snapshots, at least; None is STATE_COMPACT_BYTES
    state_part_bytes: int | None = None  # of a snapshot of its state at a time; None is GROUP_BYTES_TARGET

    def __post_init__(self) -> None:
        if self.ttl_seconds is not None and self.ttl_seconds <= 0:
            raise PolicyInvalid(f"ttl_seconds cannot be {self.ttl_seconds}")

    def deletable_before(self, state: TopicState) -> int | None:
        """Where the slowest subscription durably stands: none needs anything below. None without subscriptions.

        Without a retention policy only finished subscriptions let messages go. Those that only hold messages do not.
        """
        found = state.deletable_before()
        if found and self.retention is None and all(_HOLDS_ONLY in known.options for known in state):
            return 0
        return found


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """Options of one subscription, stored as JSON in the topic's state; a missing value has its default."""

    failure: FailurePolicy = field(default_factory=FailurePolicy)
    dispatch: DispatchSettings = field(default_factory=DispatchSettings)
    idle_seconds: int | None = None  # it is deleted when it had no consumer for this long; None: never
    holds_only: bool = False  # keeps messages until it is done with them, but never causes their deletion
    timeout_chosen: bool = field(default=False, compare=False)  # failure.ack_timeout was set explicitly
    poison_chosen: bool = field(default=False, compare=False)  # failure.poison was set explicitly

    def __post_init__(self) -> None:
        own = {"idle_seconds": self.idle_seconds, "holds_only": self.holds_only}
        given = Fields(SubscriptionOptionInvalid, own)
        given.whole("idle_seconds", 1, None, None)
        given.flag("holds_only")

    def encode(self) -> bytes:
        return json.dumps(self.stored(), separators=(",", ":")).encode()

    def stored(self) -> dict[str, Any]:
        """The options as `changed` takes them, with the timeout and the poison policy only if they were chosen.

        Options from which a subscription is made later must be stored in this form: a value that is there counts as
        chosen.
        """
        stored = self.to_json()
        if not self.timeout_chosen and self.failure.ack_timeout == ACK_TIMEOUT_DEFAULT:
            del stored["failure"]["ack_timeout"]
        if not self._poison_chosen:
            del stored["failure"]["poison"], stored["failure"]["dead_letter_topic"]
        return stored

    @property
    def _poison_chosen(self) -> bool:
        return self.poison_chosen or self.failure.poison is not PoisonPolicy.BLOCK

    def to_json(self) -> dict[str, Any]:
        """All that apply, for people and programs to see."""
        held = {name: value for name, value in asdict(self).items() if name in OPTIONS and value not in (None, False)}
        plain: dict[str, Any] = json.loads(json.dumps(held, default=_plain))
        for name in DURATIONS:
            plain["failure"][name] = in_seconds(plain["failure"][name])
        return plain

    def changed(self, found: Mapping[str, Any]) -> SubscriptionOptions:
        """These options with other values; what is not named stays."""
        unknown = next((name for name in found if name not in OPTIONS), None)
        if unknown is not None:
            sections = [name for name in ("failure", "dispatch") if hasattr(getattr(self, name), unknown)]
            meant = f"did you mean {sections[0]}.{unknown}?" if sections else f"they have {', '.join(OPTIONS)}"
            raise SubscriptionOptionInvalid(f"subscription options have no {unknown[:100]!r}; {meant}")
        failure = found.get("failure", {})
        if isinstance(failure, Mapping) and failure.get("poison", "dead_letter") != "dead_letter":
            failure = {"dead_letter_topic": None, **failure}  # no dead letters will go there
        changed = _changed(self.failure, "failure", failure)
        return SubscriptionOptions(
            changed,
            _changed(self.dispatch, "dispatch", found.get("dispatch", {})),
            _idle_seconds(found["idle_seconds"]) if "idle_seconds" in found else self.idle_seconds,
            found.get("holds_only", self.holds_only),
            self.timeout_chosen or "ack_timeout" in failure,
            self.poison_chosen or "poison" in failure,
        )

    def resolved(self, kind: SubscriptionKind, topic: TopicName, name: str) -> SubscriptionOptions:
        """As a new subscription of a reliable topic has them: where order does not matter, poison stops nothing."""
        if kind is not SubscriptionKind.SHARED or self._poison_chosen:
            return self
        letters = replace(
            self.failure, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=dead_letter_topic(topic, name)
        )
        return replace(self, failure=letters, poison_chosen=True)

    @classmethod
    def decode(cls, data: bytes) -> SubscriptionOptions:
        try:
            found = json.loads(data) if data else {}
        except ValueError as why:
            raise SubscriptionOptionInvalid(f"subscription options cannot be read: {why}") from why
        if not isinstance(found, dict):
            raise SubscriptionOptionInvalid(f"subscription options must be an object, got {shown(found)}")
        return cls.from_json(found)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> SubscriptionOptions:
        return cls().changed(found)


def dead_letter_topic(topic: TopicName, subscription: str) -> str:
    """Where dead letters go if no topic was chosen for them. It is created for the first one."""
    whole = f"{topic.whole}-{_NOT_OF_NAMES.sub('_', subscription)}"
    if len(whole) + len(DEAD_LETTERS) > TOPIC_NAME_CHARACTERS_MAX:  # if only cut, two subscriptions could share one
        digest = blake2b(whole.encode(), digest_size=8).hexdigest()
        whole = f"{whole[: TOPIC_NAME_CHARACTERS_MAX - len(DEAD_LETTERS) - len(digest) - 1]}-{digest}"
    return whole + DEAD_LETTERS


def _plain(value: object) -> object:
    assert isinstance(value, Enum)
    return value.value


def _changed(options: Section, section: str, found: object) -> Section:
    """The section with these values. An error names the options that it has."""
    if not isinstance(found, Mapping):
        raise SubscriptionOptionInvalid(f"{section} must be an object with options by name, got {shown(found)}")
    known = [each.name for each in fields(options)]
    values: dict[str, Any] = {}
    for name, value in found.items():
        if name not in known:
            raise SubscriptionOptionInvalid(
                f"{section} has no option {name[:100]!r}; its options are {', '.join(known)}"
            )
        if name in DURATIONS and value is not None:
            value = _microseconds(f"{section}.{name}", value)
        if name == "dead_letter_topic" and isinstance(value, str) and value:
            value = full_name(value)
        now = getattr(options, name)
        values[name] = _chosen(type(now), f"{section}.{name}", value) if isinstance(now, Enum) else value
    return replace(options, **values)


def in_seconds(microseconds: int | None) -> float | None:
    """As options state durations; whole seconds are whole numbers."""
    if microseconds is None or microseconds % SECOND:
        return None if microseconds is None else microseconds / SECOND
    return microseconds // SECOND


def _microseconds(name: str, value: Any) -> int:
    try:
        return microseconds_of(value)
    except ValueError as error:
        raise SubscriptionOptionInvalid(f"{name}: {error}") from None


def _idle_seconds(value: Any) -> Any:
    return _microseconds("idle_seconds", value) // SECOND if isinstance(value, str) else value


def _chosen(kind: type[Enum], name: str, value: object) -> Enum:
    choices = [each.value for each in kind]
    if value not in choices:
        raise SubscriptionOptionInvalid(f"{name} must be {listed(choices)}, got {shown(value)}")
    return kind(value)
