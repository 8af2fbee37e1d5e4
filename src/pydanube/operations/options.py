"""Options of subscriptions: their names, units, bounds and choices, as they are asked for and as they are described."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from pydanube.base.errors import DanubeError, SubscriptionOptionInvalid
from pydanube.base.limits import (
    DELAYED_MESSAGES_MAX,
    LOOKAHEAD_MESSAGES_MAX,
    POLICY_MICROSECONDS_MAX,
    REDELIVERIES_MAX,
    SECOND,
    UNACKED_MAX,
)
from pydanube.operations.operation import Answer, Changes

OPTION_SECONDS_MAX = POLICY_MICROSECONDS_MAX // SECOND

Backoff = Literal["exponential", "fixed"]
Poison = Literal["block", "drop", "dead_letter"]
Unmatched = Literal["wait", "skip"]
Text = Annotated[str, Meta(description="a duration such as 250ms")]
Delay = Annotated[float, Meta(ge=0, le=OPTION_SECONDS_MAX)] | Text
Timeout = Annotated[float, Meta(ge=0.000_001, le=OPTION_SECONDS_MAX)] | Text


class FailureOptions(Answer):
    """What happens to messages that failed. Times are in seconds."""

    max_redelivery_count: int
    ack_timeout: int | float | None
    base_delay: int | float
    max_delay: int | float
    backoff: str
    poison: str
    dead_letter_topic: str | None


class DispatchOptions(Answer):
    """How many messages may be unacknowledged, wait behind their keys, and wait for their delivery time."""

    unacked_max: int
    lookahead_max: int
    delayed_max: int
    unmatched: str


class Options(Answer):
    """The options in force; `OptionChanges` describes them. An absent one is off."""

    failure: FailureOptions
    dispatch: DispatchOptions
    idle_seconds: int | UnsetType = UNSET
    holds_only: bool | UnsetType = UNSET


class _Changes(Changes):
    invalid: ClassVar[type[DanubeError]] = SubscriptionOptionInvalid
    called: ClassVar[tuple[str, str]] = ("option", "options")


class FailureChanges(_Changes):
    """What happens to messages that failed. Times are in seconds."""

    max_redelivery_count: Annotated[
        Annotated[int, Meta(ge=0, le=REDELIVERIES_MAX)] | UnsetType,
        Meta(description="how often a message is delivered again before it counts as poison"),
    ] = UNSET
    ack_timeout: Annotated[
        Timeout | UnsetType | None,
        Meta(description="seconds after which an unacknowledged message is delivered again; null for never"),
    ] = UNSET
    base_delay: Annotated[
        Delay | UnsetType, Meta(description="seconds to wait before the first redelivery; at most `max_delay`")
    ] = UNSET
    max_delay: Annotated[
        Delay | UnsetType, Meta(description="seconds to wait before a redelivery, at most; also for nacks with a delay")
    ] = UNSET
    backoff: Annotated[
        Backoff | UnsetType, Meta(description="whether the delay doubles with each failure or stays")
    ] = UNSET
    poison: Annotated[Poison | UnsetType, Meta(description="what happens to a message that failed too often")] = UNSET
    dead_letter_topic: Annotated[
        str | UnsetType | None, Meta(description="where dead letters go; set together with `poison`")
    ] = UNSET


class DispatchChanges(_Changes):
    """How many messages may be unacknowledged, wait behind their keys, and wait for their delivery time."""

    unacked_max: Annotated[
        Annotated[int, Meta(ge=1, le=UNACKED_MAX)] | UnsetType,
        Meta(description="delivered messages that are not yet acknowledged"),
    ] = UNSET
    lookahead_max: Annotated[
        Annotated[int, Meta(ge=1, le=LOOKAHEAD_MESSAGES_MAX)] | UnsetType,
        Meta(description="key_shared: messages that wait behind their keys"),
    ] = UNSET
    delayed_max: Annotated[
        Annotated[int, Meta(ge=1, le=DELAYED_MESSAGES_MAX)] | UnsetType,
        Meta(description="shared: messages that wait for their delivery time"),
    ] = UNSET
    unmatched: Annotated[
        Unmatched | UnsetType, Meta(description="key_shared: what happens to a key that no consumer accepts")
    ] = UNSET


class OptionChanges(_Changes):
    """Options by name. An option that is absent keeps its value; in a new subscription it has its default."""

    failure: FailureChanges | UnsetType = UNSET
    dispatch: DispatchChanges | UnsetType = UNSET
    idle_seconds: Annotated[
        Annotated[int, Meta(ge=1)] | Annotated[str, Meta(description="a duration such as 7d")] | UnsetType | None,
        Meta(description="seconds without a consumer after which the subscription is deleted; null for never"),
    ] = UNSET
    holds_only: Annotated[
        bool | UnsetType,
        Meta(description="keep messages until this subscription is done with them, but delete none because it is"),
    ] = UNSET
