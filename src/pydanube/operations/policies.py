"""Policies of namespaces and topics: their names, units and bounds. Stated here, and nowhere else."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType, inspect

from pydanube.base.errors import DanubeError, PolicyInvalid
from pydanube.base.fields import shown
from pydanube.base.limits import BATCH_BYTES_MAX, CONSUMERS_MAX, PRODUCERS_MAX, SECOND, SUBSCRIPTIONS_MAX
from pydanube.base.units import bytes_of, microseconds_of
from pydanube.operations.operation import Answer, Changes
from pydanube.operations.sentences import fields_of

POLICY_MAX = (1 << 62) - 1
_COUNT = re.compile(r"[0-9]{1,19}")

CountText = Annotated[str, Meta(description="a number as text", extra={"unit": "count"})]
Count = Annotated[int, Meta(ge=1, le=POLICY_MAX)] | CountText
Producers = Annotated[int, Meta(ge=1, le=PRODUCERS_MAX)] | CountText
Subscriptions = Annotated[int, Meta(ge=1, le=SUBSCRIPTIONS_MAX)] | CountText
Consumers = Annotated[int, Meta(ge=1, le=CONSUMERS_MAX)] | CountText
Seconds = (
    Annotated[int, Meta(ge=1, le=POLICY_MAX)]
    | Annotated[str, Meta(description="a duration such as 7d", extra={"unit": "seconds"})]
)
Bytes = (
    Annotated[int, Meta(ge=1, le=POLICY_MAX)]
    | Annotated[str, Meta(description="a size such as 10GiB", extra={"unit": "bytes"})]
)
MessageBytes = (
    Annotated[int, Meta(ge=1, le=BATCH_BYTES_MAX)]
    | Annotated[str, Meta(description="a size such as 1MiB", extra={"unit": "bytes"})]
)


class Policies(Answer, omit_defaults=True):
    """The policies that are set, each in the unit that its name ends with; `PolicyChanges` describes them."""

    absent: ClassVar[object] = None

    producers_max: int | None = None
    consumers_max: int | None = None
    consumers_per_subscription_max: int | None = None
    subscriptions_max: int | None = None
    topics_max: int | None = None
    namespace_bytes_max: int | None = None
    message_bytes_max: int | None = None
    publish_messages_per_second: int | None = None
    publish_bytes_per_second: int | None = None
    dispatch_messages_per_second: int | None = None
    dispatch_bytes_per_second: int | None = None
    backlog_bytes_max: int | None = None
    backlog_seconds_max: int | None = None
    backlog_policy: str | None = None
    retention_seconds: int | None = None
    retention_bytes: int | None = None
    ttl_seconds: int | None = None
    unused_subscription_seconds: int | None = None
    table: str | None = None


class PolicyChanges(Changes):
    """Policies by name; null removes one. Text stands for a number, of seconds or bytes also with a unit."""

    invalid: ClassVar[type[DanubeError]] = PolicyInvalid
    called: ClassVar[tuple[str, str]] = ("policy", "policies")

    producers_max: Annotated[Producers | UnsetType | None, Meta(description="producers of a topic")] = UNSET
    consumers_max: Annotated[Consumers | UnsetType | None, Meta(description="consumers of a topic")] = UNSET
    consumers_per_subscription_max: Annotated[
        Consumers | UnsetType | None, Meta(description="consumers of one subscription of a topic")
    ] = UNSET
    subscriptions_max: Annotated[Subscriptions | UnsetType | None, Meta(description="subscriptions of a topic")] = UNSET
    topics_max: Annotated[Count | UnsetType | None, Meta(description="topics of the namespace; of namespaces only")] = (
        UNSET
    )
    namespace_bytes_max: Annotated[
        Bytes | UnsetType | None, Meta(description="bytes stored by all topics of the namespace; of namespaces only")
    ] = UNSET
    message_bytes_max: Annotated[MessageBytes | UnsetType | None, Meta(description="bytes of a payload")] = UNSET
    publish_messages_per_second: Annotated[
        Count | UnsetType | None, Meta(description="messages published to a topic per second")
    ] = UNSET
    publish_bytes_per_second: Annotated[
        Bytes | UnsetType | None, Meta(description="bytes published to a topic per second")
    ] = UNSET
    dispatch_messages_per_second: Annotated[
        Count | UnsetType | None, Meta(description="messages delivered to each subscription per second")
    ] = UNSET
    dispatch_bytes_per_second: Annotated[
        Bytes | UnsetType | None, Meta(description="bytes delivered to each subscription per second")
    ] = UNSET
    backlog_bytes_max: Annotated[
        Bytes | UnsetType | None, Meta(description="bytes that the slowest subscription has not finished")
    ] = UNSET
    backlog_seconds_max: Annotated[
        Seconds | UnsetType | None,
        Meta(description="age in seconds of the oldest message that the slowest subscription has not finished"),
    ] = UNSET
    backlog_policy: Annotated[
        Literal["reject", "drop_oldest"] | UnsetType | None,
        Meta(description="when the backlog is full: refuse to publish, which is the default, or drop its oldest"),
    ] = UNSET
    retention_seconds: Annotated[
        Seconds | UnsetType | None,
        Meta(description="age in seconds at which messages that all subscriptions have acknowledged are deleted"),
    ] = UNSET
    retention_bytes: Annotated[
        Bytes | UnsetType | None,
        Meta(description="bytes of messages kept although all subscriptions have acknowledged them"),
    ] = UNSET
    ttl_seconds: Annotated[
        Seconds | UnsetType | None, Meta(description="age in seconds at which a message counts as done")
    ] = UNSET
    unused_subscription_seconds: Annotated[
        Seconds | UnsetType | None,
        Meta(description="how long a subscription may be without a consumer; only of topics that are not reliable"),
    ] = UNSET
    table: Annotated[
        Literal["delta", "none"] | UnsetType | None,
        Meta(description="format of the table of uploaded messages; none turns off that of the namespace"),
    ] = UNSET


def _unit(kind: inspect.Type) -> str | None:
    """The unit that text has in a field of this type."""
    if isinstance(kind, inspect.UnionType):
        return next((unit for each in kind.types if (unit := _unit(each)) is not None), None)
    if isinstance(kind, inspect.Metadata):
        return (kind.extra or {}).get("unit") or _unit(kind.type)
    return None


_UNITS = {each.name: _unit(each.type) for each in fields_of(PolicyChanges)}


def number_of(name: str, text: str) -> int | str:
    """A policy from text: `7d` as seconds, `10GiB` as bytes, `5` as a count; the text itself if it is not a number.

    Raises `ValueError`.
    """
    match _UNITS.get(name):
        case "seconds":
            return microseconds_of(text) // SECOND
        case "bytes":
            return bytes_of(text)
        case "count":
            if not _COUNT.fullmatch(text.strip()):
                raise ValueError(f"{shown(text)} is not a whole number")
            return int(text)
    return text
