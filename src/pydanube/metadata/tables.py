"""All keys of the metadata: every table with the prefix of its keys, its records, and the module that writes them.

A table is used through `storage/metadata/table.py`; no other module writes keys or values by hand. Values are what
earlier versions wrote. `docs/internals/metadata.md` shows the same list.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Generic, TypeVar

import msgspec

from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import RECORD_BYTES_MAX
from pydanube.base.names import TopicName
from pydanube.stream.assignment import Assignment
from pydanube.stream.ledgers import LedgerPage
from pydanube.stream.stored import StoredStream, decode_page, decode_stream, encode_page, encode_stream
from pydanube.topic.policies import Policies
from pydanube.topic.record import TopicRecord
from pydanube.topic.records import SubscriptionKind
from pydanube.topic.sinks import SinkRecord

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Layout(Generic[R]):
    """Where the records of one table are, and how they are stored."""

    prefix: str  # of its keys; a table of one record has only this key
    keys: str  # what follows the prefix
    record: type[R]
    writer: str  # the only module that changes it
    purpose: str
    encode: Callable[[R], bytes]
    decode: Callable[[str, bytes], R]  # of what follows the prefix, and the value; raises any error for other bytes
    bytes_max: int | None = None  # of a record whose size its writer does not limit


# -- records that no other core has ------------------------------------------------------------------------------------


class Registration(msgspec.Struct, frozen=True):
    """The storage node that the metadata belongs to."""

    identity: NodeIdentity
    boots: int  # number of its last start; 0 before the first
    starting: int  # number of the start in progress, or the same; the node cannot have started more often


class KnownBroker(msgspec.Struct, frozen=True):
    """Where clients reach a broker."""

    address: str


class Claim(msgspec.Struct, frozen=True):
    """The location in object storage that belongs to this broker has a mark with the same id."""

    broker: str


class PartitionsChange(msgspec.Struct, frozen=True, array_like=True):
    """A change of all partitions of a topic that has begun."""

    change: str
    fields: dict[str, Any]


class RedrivenBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch of dead letters that may have been published: the offsets of its letters, and its first sequence."""

    target: str
    topic: int  # its id: a topic that was deleted and created again has none of them
    first_sequence: int
    generation: int  # of the cursor: after a seek, the letters have to be published again
    steps: list[int]  # from each offset to the next, starting at 0

    @classmethod
    def of(cls, target: str, topic: int, first_sequence: int, generation: int, offsets: list[int]) -> RedrivenBatch:
        steps = [after - before for before, after in zip([0, *offsets], offsets, strict=False)]
        return cls(target, topic, first_sequence, generation, steps)

    @property
    def offsets(self) -> list[int]:
        return list(accumulate(self.steps))


@dataclass(frozen=True, slots=True)
class KnownConsumer:
    """Everything needed to resume a consumer."""

    id: int  # made of its names, by the protocol that it uses
    topic: str
    subscription: str
    name: str
    kind: SubscriptionKind  # the type it asked for; an existing subscription keeps its own
    filters: tuple[str, ...] = ()
    turn: int = field(default=0, compare=False)  # higher than that of all that subscribed before


# -- keys of several parts ---------------------------------------------------------------------------------------------


def topic_key(name: TopicName) -> str:
    return f"{name.namespace}/{name.name}"


def topic_name(key: str) -> TopicName:
    namespace, name = key.split("/")
    return TopicName(namespace, name)


def pages_of(stream: str) -> str:
    """The start of the keys of a stream's pages."""
    return f"{stream}@"


def page_key(stream: str, number: int) -> str:
    return f"{pages_of(stream)}{number:012d}"  # keys sort in the order of the pages


def consumer_key(number: int) -> str:
    return f"{number:016x}"


# -- the tables --------------------------------------------------------------------------------------------------------


def _decoder(record: type[R]) -> Callable[[str, bytes], R]:
    decoder = msgspec.json.Decoder(record)
    return lambda _, value: decoder.decode(value)


def _encode_untyped(record: Any) -> bytes:
    """For records with text that clients have chosen, which may be no valid Unicode."""
    return json.dumps(msgspec.to_builtins(record), separators=(",", ":")).encode()


def _untyped_decoder(record: type[R]) -> Callable[[str, bytes], R]:
    return lambda _, value: msgspec.convert(json.loads(value), record)


def _encode_consumer(consumer: KnownConsumer) -> bytes:
    fields = msgspec.to_builtins(consumer)
    del fields["id"]  # it is the key
    return msgspec.json.encode(fields)


def _number(value: int) -> bytes:
    return b"%d" % value


NAMESPACES = Layout(
    "namespaces/", "<namespace>", Policies,
    "broker/directory/directory.py", "A namespace and its policies.",
    msgspec.json.encode, _decoder(Policies),
)  # fmt: skip
TOPICS = Layout(
    "topics/", "<namespace>/<topic>", TopicRecord,
    "broker/directory/directory.py", "A topic: its number, kind, partitions and policies.",
    TopicRecord.encode, lambda key, value: TopicRecord.decode(topic_name(key), value),
)  # fmt: skip
TURNS = Layout(
    "turns/", "<namespace>", int,
    "broker/directory/directory.py", "The newest topic of a namespace with a limit: each new one changes it.",
    _number, lambda _, value: int(value),
)  # fmt: skip
TOPIC_IDS = Layout(
    "ids/topics", "", int,
    "broker/directory/directory.py", "The last topic number that is reserved.",
    _number, lambda _, value: int(value),
)  # fmt: skip
CHANGES = Layout(
    "changes/", "<topic number>", PartitionsChange,
    "broker/serving/spreading.py", "A change of all partitions of a topic, until each of them has it.",
    _encode_untyped, _untyped_decoder(PartitionsChange),
)  # fmt: skip
SINKS = Layout(
    "sinks/", "<digest of the writer>", SinkRecord,
    "broker/commit/records.py", "The last batch that was decided for a writer.",
    SinkRecord.encode, lambda _, value: SinkRecord.decode(value),
)  # fmt: skip
BROKERS = Layout(
    "brokers/", "<broker>", KnownBroker,
    "broker/routing/router.py", "A broker that has served topics, and where clients reach it.",
    msgspec.json.encode, _decoder(KnownBroker),
)  # fmt: skip
ASSIGNMENTS = Layout(
    "assignments/", "<stream of a topic's messages>", Assignment,
    "storage/stream/assignments.py", "The broker that owns a topic. Its version is the epoch of this owner.",
    msgspec.json.encode, _decoder(Assignment),
)  # fmt: skip
STREAMS = Layout(
    "stream/", "<stream>", StoredStream,
    "storage/stream/catalog.py", "The record of a stream. Its version guards its pages too.",
    encode_stream, lambda _, value: decode_stream(value),
)  # fmt: skip
PAGES = Layout(
    "ledgers/", "<stream>@<number of the page>", LedgerPage,
    "storage/stream/catalog.py", "Older ledgers of a stream that has many.",
    encode_page, lambda _, value: decode_page(value),
)  # fmt: skip
LEDGER_IDS = Layout(
    "ledger-ids", "", int,
    "storage/stream/catalog.py", "The first ledger number that is not reserved.",
    _number, lambda _, value: int(value),
)  # fmt: skip
STORAGE_NODE = Layout(
    "storage-node", "", Registration,
    "storage/local.py", "The storage node of this broker, and its starts.",
    msgspec.json.encode, _decoder(Registration),
)  # fmt: skip
OBJECTS = Layout(
    "notes/objects", "", Claim,
    "broker/cold/claim.py", "The claim of this broker to its location in object storage.",
    msgspec.json.encode, _decoder(Claim),
)  # fmt: skip
PENDING_OPTIONS = Layout(
    "notes/grpc/options/", "<digest of the topic>/<digest of the subscription>", dict[str, Any],
    "broker/directory/pending_options.py", "Options of a subscription that does not exist yet.",
    _encode_untyped, _untyped_decoder(dict[str, Any]), RECORD_BYTES_MAX,
)  # fmt: skip
CONSUMERS = Layout(
    "notes/grpc/consumers/", "<id of the consumer>", KnownConsumer,
    "broker/door/known_consumers.py", "A consumer of the gRPC face, which may continue without subscribing again.",
    _encode_consumer,
    lambda key, value: msgspec.convert(msgspec.json.decode(value) | {"id": int(key, 16)}, KnownConsumer),
    RECORD_BYTES_MAX,
)  # fmt: skip
REDRIVES = Layout(
    "notes/redrive/", "<topic number>/<partition>", RedrivenBatch,
    "broker/serving/republish.py", "The batch of dead letters that is being published again.",
    msgspec.json.encode, _decoder(RedrivenBatch), RECORD_BYTES_MAX,
)  # fmt: skip
PIPELINE_RECORDS = Layout(
    "notes/pipelines/", "<part>/<pipeline>/<number of the page>", str,
    "broker/door/verbs/pipelines.py", "A page of what a pipeline keeps here about its checkpoint or its dead letters.",
    str.encode, lambda _, value: value.decode(), RECORD_BYTES_MAX,
)  # fmt: skip

TABLES: tuple[Layout[Any], ...] = (
    NAMESPACES, TOPICS, TURNS, TOPIC_IDS, CHANGES, SINKS, BROKERS, ASSIGNMENTS, STREAMS, PAGES, LEDGER_IDS,
    STORAGE_NODE, OBJECTS, PENDING_OPTIONS, CONSUMERS, REDRIVES, PIPELINE_RECORDS,
)  # fmt: skip
