"""What can be chosen about a topic and about a subscription, and how a subscription's choices are stored with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from pydanube.base.durability import Durability
from pydanube.base.errors import PolicyInvalid
from pydanube.broker.quotas import BacklogQuota
from pydanube.dispatch.policy import Backoff, DispatchSettings, FailurePolicy, PoisonPolicy, Unmatched
from pydanube.ledger.catalog import Copies
from pydanube.ledger.retention import RetentionPolicy


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Per topic; the clock's defaults are §19–§21's."""

    durability: Durability = Durability.FSYNC
    copies: Copies = field(default_factory=Copies)
    retention: RetentionPolicy | None = None  # None: for ever without subscriptions, until acked by all with some
    ttl_seconds: int | None = None
    backlog: BacklogQuota | None = None
    dispatch_messages_per_second: int | None = None  # to each subscription
    dispatch_bytes_per_second: int | None = None
    ledger_bytes: int = 256 * 1024 * 1024
    ledger_seconds: float = 4 * 3600.0

    def __post_init__(self) -> None:
        if self.ttl_seconds is not None and self.ttl_seconds <= 0:
            raise PolicyInvalid(f"a message cannot live for {self.ttl_seconds} seconds")


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """Stored as JSON in the topic's state; a value that is not there has its default."""

    failure: FailurePolicy = field(default_factory=FailurePolicy)
    dispatch: DispatchSettings = field(default_factory=DispatchSettings)

    def encode(self) -> bytes:
        return json.dumps(asdict(self), default=_plain, separators=(",", ":")).encode()

    def to_json(self) -> dict[str, Any]:
        """As `from_json` takes them."""
        plain: dict[str, Any] = json.loads(self.encode())
        return plain

    def changed(self, found: Mapping[str, Any]) -> SubscriptionOptions:
        """With these values instead of its own; what is not named stays."""
        unknown = [name for name in found if name not in ("failure", "dispatch")]
        if unknown:
            raise PolicyInvalid(f"a subscription has the options failure and dispatch, not {unknown[0][:100]!r}")
        try:
            return SubscriptionOptions(
                replace(self.failure, **_typed(found.get("failure", {}), backoff=Backoff, poison=PoisonPolicy)),
                replace(self.dispatch, **_typed(found.get("dispatch", {}), unmatched=Unmatched)),
            )
        except (ValueError, TypeError, AttributeError) as why:
            raise PolicyInvalid(f"options of a subscription cannot be read: {why}") from why

    @classmethod
    def decode(cls, data: bytes) -> SubscriptionOptions:
        try:
            found = json.loads(data) if data else {}
        except ValueError as why:
            raise PolicyInvalid(f"options of a subscription cannot be read: {why}") from why
        return cls.from_json(found)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> SubscriptionOptions:
        return cls().changed(found)


def _plain(value: object) -> object:
    assert isinstance(value, Enum)
    return value.value


def _typed(found: dict[str, Any], **kinds: type[Enum]) -> dict[str, Any]:
    return {name: kinds[name](value) if name in kinds else value for name, value in found.items()}
