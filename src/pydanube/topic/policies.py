"""Policies of namespaces and topics at work: changed, merged, and what follows from them.

`operations/policies.py` states their names, units and bounds; `docs/policies.md` says what happens at each limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from pydanube.base.errors import NotReliable, PolicyInvalid
from pydanube.operations import policies
from pydanube.operations.operation import read
from pydanube.operations.policies import PolicyChanges, number_of


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """How far the slowest subscription of a topic may fall behind; None means no limit."""

    bytes: int | None = None
    seconds: int | None = None
    drop_oldest: bool = False  # instead of refusing to publish


class Policies(policies.Policies):
    """The policies of one namespace or topic; None where it sets none.

    A topic's values override those of its namespace. A partition counts as a topic.
    """

    def over(self, below: Policies) -> Policies:
        """These policies, with the values of `below` for those that are not set."""
        return replace(below, **self)

    def changed(self, values: Mapping[str, Any]) -> Policies:
        """A copy with these values set; None removes a value."""
        found = {name: _number(name, value) for name, value in values.items()}
        return replace(self, **read(PolicyChanges, found, PolicyInvalid).given())

    def check_topic(self, topic: object, *, reliable: bool) -> None:
        """Raises if one of these cannot be set on the topic: it is for namespaces, or for the other kind of topic."""
        for name in self:
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
        return BacklogQuota(self.backlog_bytes_max, self.backlog_seconds_max, self.backlog_policy == "drop_oldest")

    @property
    def due_always(self) -> bool:
        """Whether a topic must be visited even without activity: time or other topics may use up a limit."""
        ages = (self.ttl_seconds, self.retention_seconds, self.backlog_seconds_max)
        sizes = (self.retention_bytes, self.backlog_bytes_max, self.namespace_bytes_max)
        return any(limit is not None for limit in ages + sizes)


def _number(name: str, value: Any) -> Any:
    """Text with a unit, such as `7d` or `10GiB`, as a number of seconds or bytes."""
    try:
        return number_of(name, value) if isinstance(value, str) else value
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
