"""Policies of namespaces and topics: limits and rules, checked, merged, and stored as JSON.

`docs/policies.md` says what happens when each limit is reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pydanube.base.errors import NotReliable, PolicyInvalid
from pydanube.base.fields import Fields, values_of
from pydanube.base.limits import BATCH_BYTES_MAX, CONSUMERS_MAX, PRODUCERS_MAX, SECOND, SUBSCRIPTIONS_MAX
from pydanube.base.units import bytes_of, microseconds_of
from pydanube.broker.limits.quotas import BacklogQuota

NUMBER_MAX = (1 << 62) - 1
DELTA, NO_TABLE = "delta", "none"
REJECT, DROP_OLDEST = "reject", "drop_oldest"


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of one namespace or topic; None where it sets none.

    A topic's values override those of its namespace. A partition counts as a topic.
    """

    producers_max: int | None = None
    consumers_max: int | None = None
    consumers_per_subscription_max: int | None = None
    subscriptions_max: int | None = None
    topics_max: int | None = None  # in the namespace
    namespace_bytes_max: int | None = None  # stored by all topics of the namespace
    message_bytes_max: int | None = None
    publish_messages_per_second: int | None = None
    publish_bytes_per_second: int | None = None
    dispatch_messages_per_second: int | None = None  # to each subscription
    dispatch_bytes_per_second: int | None = None
    backlog_bytes_max: int | None = None  # not yet finished by the slowest subscription
    backlog_seconds_max: int | None = None
    backlog_policy: str | None = None  # `reject`, the default, or `drop_oldest`
    retention_seconds: int | None = None
    retention_bytes: int | None = None
    ttl_seconds: int | None = None
    unused_subscription_seconds: int | None = None  # only of topics that are not reliable; see `BestEffortTopic`
    table: str | None = None  # `delta`: what is in object storage is also a table; `none` exempts a topic

    def __post_init__(self) -> None:
        values = values_of(self)
        given = Fields(PolicyInvalid, values)
        for name, top in _BOUNDS.items():
            if values[name] is not None:
                given.whole(name, 1, top)
        given.one_of("backlog_policy", (REJECT, DROP_OLDEST), None)
        given.one_of("table", (DELTA, NO_TABLE), None)

    def over(self, below: Policies) -> Policies:
        """These policies, with the values of `below` for those that are not set."""
        own = {name: value for name, value in values_of(self).items() if value is not None}
        return replace(below, **own)

    def changed(self, values: Mapping[str, Any]) -> Policies:
        """A copy with these values set; None removes a value."""
        known = [field.name for field in fields(self)]
        for name in values:
            if name not in known:
                raise PolicyInvalid(f"unknown policy {name[:100]!r}; the policies are {', '.join(known)}")
        return replace(self, **{name: _number(name, value) for name, value in values.items()})

    def check_topic(self, topic: object, *, reliable: bool) -> None:
        """Raises if one of these cannot be set on the topic: it is for namespaces, or for the other kind of topic."""
        for name in self.to_json():
            if name in OF_NAMESPACES:
                raise PolicyInvalid(f"{name} is a policy of namespaces and cannot be set on {topic}")
            if name in OF_RELIABLE and not reliable:
                raise NotReliable(f"{topic} is not reliable, so {name} does not apply to it")
            if name in OF_BEST_EFFORT and reliable:
                raise PolicyInvalid(
                    f"{name} applies only to topics that are not reliable; use the subscription option idle_seconds"
                )

    @property
    def backlog(self) -> BacklogQuota | None:
        if self.backlog_bytes_max is None and self.backlog_seconds_max is None:
            return None
        return BacklogQuota(self.backlog_bytes_max, self.backlog_seconds_max, self.backlog_policy == DROP_OLDEST)

    @property
    def due_always(self) -> bool:
        """Whether a topic must be visited even when nothing happens in it: time or other topics may use up a limit."""
        ages = (self.ttl_seconds, self.retention_seconds, self.backlog_seconds_max)
        sizes = (self.retention_bytes, self.backlog_bytes_max, self.namespace_bytes_max)
        return any(limit is not None for limit in ages + sizes)

    def to_json(self) -> dict[str, int | str]:
        return {name: value for name, value in values_of(self).items() if value is not None}


def _number(name: str, value: Any) -> Any:
    """A string with a unit, such as `7d` or `10GiB`, as a number of seconds or bytes."""
    if not isinstance(value, str) or name not in _BOUNDS:
        return value
    try:
        return microseconds_of(value) // SECOND if "seconds" in name else bytes_of(value)
    except ValueError as error:
        raise PolicyInvalid(f"{name}: {error}") from None


OF_NAMESPACES = ("topics_max", "namespace_bytes_max")
OF_RELIABLE = (
    "backlog_bytes_max",
    "backlog_seconds_max",
    "backlog_policy",
    "retention_seconds",
    "retention_bytes",
    "ttl_seconds",
    "table",
)

OF_BEST_EFFORT = ("unused_subscription_seconds",)

_BOUNDS: dict[str, int] = {
    "producers_max": PRODUCERS_MAX,
    "consumers_max": CONSUMERS_MAX,
    "consumers_per_subscription_max": CONSUMERS_MAX,
    "subscriptions_max": SUBSCRIPTIONS_MAX,
    "topics_max": NUMBER_MAX,
    "namespace_bytes_max": NUMBER_MAX,
    "message_bytes_max": BATCH_BYTES_MAX,
    "publish_messages_per_second": NUMBER_MAX,
    "publish_bytes_per_second": NUMBER_MAX,
    "dispatch_messages_per_second": NUMBER_MAX,
    "dispatch_bytes_per_second": NUMBER_MAX,
    "backlog_bytes_max": NUMBER_MAX,
    "backlog_seconds_max": NUMBER_MAX,
    "retention_seconds": NUMBER_MAX,
    "retention_bytes": NUMBER_MAX,
    "ttl_seconds": NUMBER_MAX,
    "unused_subscription_seconds": NUMBER_MAX,
}
