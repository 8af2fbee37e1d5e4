"""The options of topics and subscriptions, and how those of a subscription are stored."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from typing import Any, TypeVar

from msgspec import UNSET

from pydanube.base.durability import Durability
from pydanube.base.errors import PolicyInvalid, SubscriptionOptionInvalid
from pydanube.base.fields import shown, values_of
from pydanube.base.limits import LEDGERS_LISTED_MAX, MIB, SECOND, TOPIC_NAME_CHARACTERS_MAX
from pydanube.base.names import TopicName, full_name
from pydanube.base.units import microseconds_of
from pydanube.dispatch.policy import ACK_TIMEOUT_DEFAULT, DispatchSettings, FailurePolicy, PoisonPolicy
from pydanube.operations.operation import read
from pydanube.operations.options import DispatchOptions, FailureOptions, OptionChanges, Options
from pydanube.stream.record import Copies
from pydanube.stream.retention import RetentionPolicy
from pydanube.topic.policies import BacklogQuota
from pydanube.topic.records import SubscriptionKind
from pydanube.topic.state import TopicState

DEAD_LETTERS = "-dlq"  # appended to the names of the topic and the subscription
_NOT_OF_NAMES = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)
DURATIONS = ("ack_timeout", "base_delay", "max_delay")  # in `failure`: seconds, or text such as 250ms
_DEFAULT_LETTERS = "default_letters"
_HOLDS_ONLY = b'"holds_only":true'  # as `encode` writes it: found without decoding all options in every turn
Section = TypeVar("Section", FailurePolicy, DispatchSettings)


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Options of one topic. The defaults are those of §19 to §21."""

    durability: Durability = Durability.FSYNC
    copies: Copies = field(default_factory=Copies)
    retention: RetentionPolicy | None = None  # None: forever without subscriptions, otherwise until all have acked
    ttl_seconds: int | None = None
    backlog: BacklogQuota | None = None
    dispatch_messages_per_second: int | None = None  # to each subscription
    dispatch_bytes_per_second: int | None = None
    unused_subscription_seconds: int | None = None  # of a best-effort topic; None is its default
    table: str | None = None  # the format of the table that its segments form: "delta"
    ledger_bytes: int = 256 * MIB
    ledger_seconds: float = 4 * 3600.0
    ledgers_listed: int = LEDGERS_LISTED_MAX  # in a stream's record; older ones are in pages
    state_compact_bytes: int | None = None  # bytes of state log that trigger a snapshot; None: STATE_COMPACT_BYTES
    state_part_bytes: int | None = None  # how much of a snapshot is written at a time; None: GROUP_BYTES_TARGET

    def __post_init__(self) -> None:
        if self.ttl_seconds is not None and self.ttl_seconds <= 0:
            raise PolicyInvalid(f"ttl_seconds cannot be {self.ttl_seconds}")

    def deletable_before(self, state: TopicState) -> int | None:
        """Durable floor of the slowest subscription: messages below it are not needed. None without subscriptions.

        Without a retention policy, messages are deleted only once subscriptions have finished them; subscriptions that
        only hold messages do not count.
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
    idle_seconds: int | None = None  # deleted after this long without a consumer; None: never
    holds_only: bool = False  # keeps messages until it is done with them, but never causes their deletion
    timeout_chosen: bool = field(default=False, compare=False)  # failure.ack_timeout was set explicitly
    poison_chosen: bool = field(default=False, compare=False)  # failure.poison was set explicitly
    default_letters: bool = field(default=False, compare=False)  # no caller has chosen failure.dead_letter_topic

    def encode(self) -> bytes:
        """As the state of a topic has them."""
        stored = self.stored()
        if self.default_letters:
            poison, letters = self.failure.poison.value, self.failure.dead_letter_topic
            stored["failure"] |= {"poison": poison, "dead_letter_topic": letters}
            stored[_DEFAULT_LETTERS] = True
        return json.dumps(stored, separators=(",", ":")).encode()

    def stored(self) -> dict[str, Any]:
        """The options as `changed` takes them, with the timeout and what happens to poison only if they were chosen.

        Options for a subscription that is created later must be stored in this form, because every value in it counts
        as chosen.
        """
        stored = self.to_json()
        if not self.timeout_chosen and self.failure.ack_timeout == ACK_TIMEOUT_DEFAULT:
            del stored["failure"]["ack_timeout"]
        if not self._poison_chosen or self.default_letters:
            del stored["failure"]["poison"], stored["failure"]["dead_letter_topic"]
        return stored

    @property
    def _poison_chosen(self) -> bool:
        return self.poison_chosen or self.failure.poison is not PoisonPolicy.BLOCK

    def described(self) -> Options:
        """All options in force, for people and programs."""
        return Options(
            FailureOptions(**_plain(self.failure)),
            DispatchOptions(**_plain(self.dispatch)),
            UNSET if self.idle_seconds is None else self.idle_seconds,
            self.holds_only or UNSET,
        )

    def to_json(self) -> dict[str, Any]:
        return self.described().to_fields()

    def changed(self, found: Mapping[str, Any]) -> SubscriptionOptions:
        """These options with other values; options that are not named stay the same."""
        given = read(OptionChanges, found, SubscriptionOptionInvalid).given()
        given = read(OptionChanges, _in_numbers(given), SubscriptionOptionInvalid).given()
        failure = given.get("failure", {})
        if failure.get("poison", "dead_letter") != "dead_letter":
            failure = {"dead_letter_topic": None, **failure}  # there will be no dead letters
        default_letters = self.default_letters and "dead_letter_topic" not in failure
        return SubscriptionOptions(
            _changed(self.failure, failure),
            _changed(self.dispatch, given.get("dispatch", {})),
            given.get("idle_seconds", self.idle_seconds),
            given.get("holds_only", self.holds_only),
            self.timeout_chosen or "ack_timeout" in failure,
            self.poison_chosen or "poison" in failure,
            default_letters,
        )

    def resolved(self, kind: SubscriptionKind, topic: TopicName, name: str) -> SubscriptionOptions:
        """The options of a new subscription of a reliable topic. In Shared, poison messages become dead letters."""
        if kind is not SubscriptionKind.SHARED or self._poison_chosen:
            return self
        letters = replace(
            self.failure, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=dead_letter_topic(topic, name)
        )
        return replace(self, failure=letters, poison_chosen=True, default_letters=True)

    @classmethod
    def decode(cls, data: bytes) -> SubscriptionOptions:
        try:
            found = json.loads(data) if data else {}
        except ValueError as why:
            raise SubscriptionOptionInvalid(f"subscription options cannot be read: {why}") from why
        if not isinstance(found, dict):
            raise SubscriptionOptionInvalid(f"subscription options must be an object, got {shown(found)}")
        default_letters = bool(found.pop(_DEFAULT_LETTERS, False))  # no option: callers cannot choose it
        return replace(cls.from_json(found), default_letters=default_letters)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> SubscriptionOptions:
        return cls().changed(found)


def dead_letter_topic(topic: TopicName, subscription: str) -> str:
    """Where dead letters go if no topic was chosen for them. The topic is created for the first one."""
    whole = f"{topic.whole}-{_NOT_OF_NAMES.sub('_', subscription)}"
    if len(whole) + len(DEAD_LETTERS) > TOPIC_NAME_CHARACTERS_MAX:  # a bare cut could give two the same name
        digest = blake2b(whole.encode(), digest_size=8).hexdigest()
        whole = f"{whole[: TOPIC_NAME_CHARACTERS_MAX - len(DEAD_LETTERS) - len(digest) - 1]}-{digest}"
    return whole + DEAD_LETTERS


def _plain(section: FailurePolicy | DispatchSettings) -> dict[str, Any]:
    """The values of the section as they are stated: choices by their names, durations in seconds."""
    values: dict[str, Any] = {}
    for name, value in values_of(section).items():
        values[name] = in_seconds(value) if name in DURATIONS else value.value if isinstance(value, Enum) else value
    return values


def _changed(options: Section, found: Mapping[str, Any]) -> Section:
    """The section with these values."""
    values: dict[str, Any] = {}
    for name, value in found.items():
        now = getattr(options, name)
        if name in DURATIONS and value is not None:
            values[name] = microseconds_of(value)
        elif name == "dead_letter_topic" and value:
            values[name] = full_name(value)
        else:
            values[name] = type(now)(value) if isinstance(now, Enum) else value
    return replace(options, **values)


def _in_numbers(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with durations in text, such as `30s`, as numbers of seconds: the bounds are those of numbers."""
    failure = {
        name: in_seconds(_microseconds(f"failure.{name}", value))
        if name in DURATIONS and isinstance(value, str)
        else value
        for name, value in given.get("failure", {}).items()
    }
    numbers = {**given, "failure": failure}
    if isinstance(idle := given.get("idle_seconds"), str):
        numbers["idle_seconds"] = _microseconds("idle_seconds", idle) // SECOND
        if not numbers["idle_seconds"]:
            raise SubscriptionOptionInvalid(f"idle_seconds must be 1 second or longer, got {shown(idle)}")
    return numbers


def in_seconds(microseconds: int | None) -> float | None:
    """Durations as options state them: in seconds, as an integer where possible."""
    if microseconds is None or microseconds % SECOND:
        return None if microseconds is None else microseconds / SECOND
    return microseconds // SECOND


def _microseconds(name: str, value: str) -> int:
    try:
        return microseconds_of(value)
    except ValueError as error:
        raise SubscriptionOptionInvalid(f"{name}: {error}") from None
