"""Operations of a native connection: producers and consumers on its channels, and reading without a subscription."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from pydanube.base.limits import READ_AHEAD_BYTES
from pydanube.operations.fields import Offset, Position, Type
from pydanube.operations.operation import Answer, Done, Request, operation
from pydanube.operations.options import OptionChanges
from pydanube.operations.topics import Bounds

Channel = Annotated[int, Meta(ge=1, le=(1 << 32) - 1)]


class OpenedProducer(Answer):
    topic: str
    partition: int | None
    producer_id: int
    epoch: int
    next_sequence: int
    reliable: bool
    durability: str
    message_bytes_max: int | None
    resume: str


class OpenedConsumer(Answer):
    consumer: int
    resume: str
    generation: int
    floor: int
    reliable: bool
    ack_timeout: int | UnsetType | None = UNSET


class Generation(Answer):
    generation: int


class BatchSizes(Answer):
    """First offset, number of messages, unpacked bytes and append time of each batch."""

    batches: list[tuple[int, int, int, int]]


@operation("open_producer", "Open a producer on a channel", changes=True)
class OpenProducer(Request[OpenedProducer]):
    channel: Channel
    topic: str
    name: str | None = None
    resume: str | None = None
    fresh: bool = False
    temporary: bool = False
    epoch: int | None = None
    next_epoch: int | None = None
    reliable: bool = True
    create: bool = True


@operation("open_consumer", "Open a consumer on a channel", changes=True)
class OpenConsumer(Request[OpenedConsumer]):
    channel: Channel
    topic: str
    subscription: str
    type: Type = "exclusive"
    name: str = ""
    start: Position = "latest"
    filters: list[str] = field(default_factory=list)
    create: bool = True
    reliable: bool | None = None
    resume: str | None = None
    options: OptionChanges | None = None
    says_taken: bool = False
    takes_over: bool = False


@operation("close", "Close a channel", changes=True)
class CloseChannel(Request[Done]):
    channel: Channel
    crashed: bool = False
    returning: bool = False


@operation("seek", "Move the subscription of a consumer", changes=True)
class Seek(Request[Generation]):
    channel: Channel
    offset: Offset | None = None
    time: int | None = None


@operation("pause", "Pause the subscription of a consumer", changes=True)
class Pause(Request[Done]):
    channel: Channel


@operation("resume", "Resume the subscription of a consumer", changes=True)
class Resume(Request[Done]):
    channel: Channel


@operation("read", "Read batches from an offset on")
class Read(Request[Bounds]):  # answered with batches, if there are any
    topic: str
    offset: int
    bytes_max: int = READ_AHEAD_BYTES
    resume: str | None = None


@operation("sizes", "Get the sizes of the batches that `read` would return")
class GetSizes(Request[BatchSizes]):
    topic: str
    offset: int
    bytes_max: int = READ_AHEAD_BYTES
