"""Encodes batches as the `StreamMessage`s of one consumer. Owns no connection; raises what a damaged batch raises.

A message that a client would refuse is never encoded: clients end their stream over it, and ask for it again.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from pydanube.api.grpc.ids import NUMBER_ATTRIBUTE, producer_id
from pydanube.api.grpc.messages import Messages
from pydanube.base.errors import GrpcMessageTooLarge
from pydanube.base.limits import GRPC_MESSAGE_BYTES_MAX, MILLISECOND
from pydanube.broker.door.values import ORIGIN, PRODUCER_ATTRIBUTE, SUBSCRIBER
from pydanube.wire.batch import Batch

_PREFIX = Struct(">BI").pack  # of a gRPC message: the flag "not compressed", and the length
_DIGITS_MAX = 20  # of a number of 64 bits
UINT64, UINT32 = (1 << 64) - 1, (1 << 32) - 1  # schema numbers have no sign here; in a batch they do
ORIGIN_PRODUCER = "x-original-producer-id"
ORIGIN_ADDRESS = "x-original-broker-addr"
danube = Messages("danube")


class _Columns:
    """One batch, decoded: lists with a value for each message, or None where no message has one."""

    __slots__ = ("attributes", "batch", "keys", "payloads", "schemas", "senders", "times")

    def __init__(self, batch: Batch, name_of: Callable[[int], str]) -> None:
        self.batch = batch
        self.payloads = batch.payloads()
        self.times = batch.publish_times()
        keys, ids, versions = batch.keys(), batch.schema_ids(), batch.schema_versions()
        self.keys = keys if keys.count(None) < batch.count else None
        schemas = list(zip(ids, versions, strict=True))
        self.schemas = schemas if schemas.count((None, None)) < batch.count else None
        name, rows = name_of(batch.producer_id), batch.attributes()
        self.senders = [  # name, and the id where it was sent along
            (name, "") if row is None else (row.pop(PRODUCER_ATTRIBUTE, name), row.pop(NUMBER_ATTRIBUTE, ""))
            for row in rows
        ]
        self.attributes = rows if any(rows) else None


class Encoder:
    """The encoder of one consumer. Fields that its messages have in common are set only once."""

    def __init__(self, topic: str, broker_url: str, reliable: bool, name_of: Callable[[int], str]) -> None:
        self._topic = topic
        self._reliable = reliable
        self._name_of = name_of
        self._columns: _Columns | None = None  # of the batch that was delivered in part last
        self._message = danube.StreamMessage()
        self._identity = self._message.msg_id
        self._identity.topic_name = topic
        self._identity.broker_addr = broker_url

    def encode(self, batch: Batch, first: int, last: int) -> bytes:
        """The messages with these offsets, each framed for gRPC. Raises if one is too large for that."""
        try:
            return self._encode(batch, first, last)
        finally:
            self._clear()

    def _encode(self, batch: Batch, first: int, last: int) -> bytes:
        columns = self._columns
        if columns is None or columns.batch is not batch:
            columns = _Columns(batch, self._name_of)
        self._columns = columns if last < batch.last_offset else None
        message, identity, reliable = self._message, self._identity, self._reliable
        sender, base = None, batch.base_offset
        parts: list[bytes] = []
        for row in range(first - base, last - base + 1):
            if columns.senders[row] != sender:
                sender = columns.senders[row]
                self._sent_by(batch, *sender)
            if reliable:
                identity.topic_offset = base + row
            message.payload = columns.payloads[row] or b""
            message.publish_time = max(0, columns.times[row]) // MILLISECOND  # native producers may send any time
            if columns.keys is not None:
                self._set_key(columns.keys[row])
            if columns.attributes is not None or columns.schemas is not None:
                self._set_rest(columns, row)
            data = message.SerializeToString()
            if len(data) > GRPC_MESSAGE_BYTES_MAX:
                raise GrpcMessageTooLarge(f"{len(data)} bytes, but clients accept at most {GRPC_MESSAGE_BYTES_MAX}")
            parts += _PREFIX(0, len(data)), data
        return b"".join(parts)

    def _clear(self) -> None:
        for field in ("payload", "routing_key", "attributes", "schema_id", "schema_version"):
            self._message.ClearField(field)

    def _sent_by(self, batch: Batch, name: str, number: str) -> None:
        self._message.producer_name = name
        self._identity.producer_id = (
            batch.producer_id or _known(number) or producer_id(self._topic, name, reliable=self._reliable)
        )

    def _set_key(self, key: bytes | None) -> None:
        if key is None:
            self._message.ClearField("routing_key")
        else:
            self._message.routing_key = key.decode("utf-8", "backslashreplace")

    def _set_rest(self, columns: _Columns, row: int) -> None:
        message = self._message
        for field in ("attributes", "schema_id", "schema_version"):
            message.ClearField(field)
        attributes = None if columns.attributes is None else columns.attributes[row]
        if attributes:
            if ORIGIN in attributes and SUBSCRIBER in attributes:
                self._tell_origin(attributes, *columns.senders[row])
            message.attributes.update(attributes)
        if columns.schemas is not None:
            schema_id, schema_version = columns.schemas[row]
            if schema_id is not None:
                message.schema_id = schema_id & UINT64
            if schema_version is not None:
                message.schema_version = schema_version & UINT32

    def _tell_origin(self, attributes: dict[str, str], name: str, number: str) -> None:
        """Adds the original producer to a dead letter. The topic has no producer numbers for this face."""
        if name and attributes.get(ORIGIN_PRODUCER) == "0":
            known = _known(number) or producer_id(attributes[ORIGIN], name, reliable=True)
            attributes[ORIGIN_PRODUCER] = str(known)
        attributes.setdefault(ORIGIN_ADDRESS, self._identity.broker_addr)


def _known(number: str) -> int:
    """A producer id from an attribute; 0 if it is not one, because a native producer may have set it to anything."""
    known = int(number) if number.isascii() and number.isdecimal() and len(number) <= _DIGITS_MAX else 0
    return known if known <= UINT64 else 0
