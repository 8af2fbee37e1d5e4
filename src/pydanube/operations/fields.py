"""Types of fields that several operations have, each with its bounds and the sentence that describes it."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from pydanube.base.limits import LISTED_MAX, OFFSET_MAX, PARTITIONS_MAX

TypeName = Literal["exclusive", "shared", "failover", "key_shared"]
TYPES: tuple[TypeName, ...] = get_args(TypeName)
DurabilityName = Literal["fsynced", "buffered"]
ReportedState = Literal["starting", "running", "retrying", "stopping", "stopped", "failed"]
Order = Literal["stop", "restart"]
End = Literal["earliest", "latest"]


def _values(*values: str) -> Meta:
    """Describes the values of a field in an answer. A reader accepts others too: a newer broker may have more."""
    return Meta(extra_json_schema={"enum": list(values)})


SubscriptionType = Annotated[str, _values(*TYPES)]
Durability = Annotated[str, _values(*get_args(DurabilityName), "none")]
KeyHash = Annotated[str, _values("fnv1a64", "crc32c")]
Whereabouts = Annotated[str, _values("local", "both", "objects", "unreadable")]
SegmentState = Annotated[str, _values("sound", "lost", "damaged", "gone")]
DamagedPart = Annotated[str, _values("messages", "state")]
TableFormat = Annotated[str, _values("delta")]
PipelineState = Annotated[str, _values(*get_args(ReportedState), "lost")]
OrderName = Annotated[str, _values("none", *get_args(Order))]

Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
Microseconds = Annotated[int, Meta(description="microseconds since 1970")]
Milliseconds = Annotated[int, Meta(ge=0, description="how long to wait at most")]
Limit = Annotated[int, Meta(ge=1, description=f"maximum number; an answer has at most {LISTED_MAX}")]
After = Annotated[str, Meta(description="only names after this one")]
DryRun = Annotated[bool, Meta(description="only check whether it can be done, without changing anything")]
Ticket = Annotated[int, Meta(description="ticket in the previous response, to keep waiting for the running job")]
Type = Annotated[
    str,
    _values(*TYPES),
    Meta(description="of a new subscription, in any case and also as key-shared or KeyShared; default exclusive"),
]
Partitions = Annotated[int, Meta(ge=0, le=PARTITIONS_MAX)]


def type_named(text: str) -> TypeName | None:
    """The type of subscriptions that a text names in any spelling, such as `KeyShared` or `key-shared`."""
    plain = text.lower().replace("-", "").replace("_", "")
    return next((name for name in TYPES if name.replace("_", "") == plain), None)


class AtTime(msgspec.Struct, forbid_unknown_fields=True):
    """The first message that was appended at this time or later."""

    time: Microseconds


Position = Annotated[
    End | Offset | AtTime,
    Meta(description="`earliest`, `latest`, an offset, or {time: microseconds since 1970}"),
]
