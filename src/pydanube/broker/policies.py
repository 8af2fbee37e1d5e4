"""What a namespace or topic allows: limits and rules with their defaults, checked, merged and stored as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from pydanube.base.errors import PolicyInvalid
from pydanube.base.limits import BATCH_BYTES_MAX, CONSUMERS_MAX, PRODUCERS_MAX, SUBSCRIPTIONS_MAX

NUMBER_MAX = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Policies:
    """None is no limit of its own. A topic's values override its namespace's."""

    producers_max: int | None = None  # of one topic (partition)
    consumers_max: int | None = None  # of one topic (partition)
    subscriptions_max: int | None = None  # of one topic
    topics_max: int | None = None  # of the namespace
    message_bytes_max: int | None = None
    retention_seconds: int | None = None
    retention_bytes: int | None = None
    ttl_seconds: int | None = None

    def __post_init__(self) -> None:
        for name, top in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= top):
                raise PolicyInvalid(f"{name} is a whole number from 1 to {top}, not {value!r}")

    def over(self, below: Policies) -> Policies:
        """These, and where these say nothing, those below."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(below, **{name: value for name, value in own.items() if value is not None})

    def changed(self, values: Mapping[str, Any]) -> Policies:
        """With these values set; None takes one back."""
        for name in values:
            if name not in _BOUNDS:
                raise PolicyInvalid(f"there is no policy {name[:100]!r}; there are {', '.join(_BOUNDS)}")
        return replace(self, **values)

    def to_json(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if value is not None}


_BOUNDS: dict[str, int] = {
    "producers_max": PRODUCERS_MAX,
    "consumers_max": CONSUMERS_MAX,
    "subscriptions_max": SUBSCRIPTIONS_MAX,
    "topics_max": NUMBER_MAX,
    "message_bytes_max": BATCH_BYTES_MAX,
    "retention_seconds": NUMBER_MAX,
    "retention_bytes": NUMBER_MAX,
    "ttl_seconds": NUMBER_MAX,
}
