"""Messages as JSON and YAML, as REST has them, and JSON as messages."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import click
import msgspec
from msgspec.structs import asdict

from pydanube.base.names import parse_topic
from pydanube.cli.shell.values import is_text, read_time, shown_time
from pydanube.client import Message
from pydanube.operations.messages import NewMessage, ReceivedMessage, StoredMessage, stored_fields

PUBLISHED = NewMessage.__struct_fields__  # the other fields of a message say where it was stored
ENCODED = ("key", "value", "payload")  # may be Base64 if `key_encoding` and so on say so, in files of every format
NAMES = frozenset(
    {*ReceivedMessage.__struct_fields__, "partition", "payload", *(f"{name}_encoding" for name in ENCODED)}
)
to_json = json.JSONEncoder(ensure_ascii=False).encode  # creating an encoder for each message would be slow
_encode = msgspec.json.Encoder().encode


class Draft(NamedTuple):
    """A message to be published."""

    payload: bytes | None
    key: bytes | None = None
    attributes: dict[str, str] | None = None
    event_time: int | None = None
    delivery_time: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of the producer's `send`."""
        return {
            "key": self.key,
            "attributes": self.attributes,
            "event_time": self.event_time,
            "delivery_time": self.delivery_time,
        }


def stored_message(message: Message) -> StoredMessage:
    topic = _partition_of(message.topic, message.partition)
    return StoredMessage(**stored_fields(topic, message, message.key_bytes, message.payload))


class PeekedMessage(StoredMessage, kw_only=True):
    partition: int | None


def peeked_message(message: Message) -> PeekedMessage:
    return PeekedMessage(**asdict(stored_message(message)), partition=message.partition)


@lru_cache(256)  # the messages of a batch share it
def _partition_of(topic: str, partition: int | None) -> str:
    return str(parse_topic(topic)._replace(partition=partition))


def row_for_people(message: Message) -> dict[str, Any]:
    """A row of a table, with times as text. Binary data is escaped, as in `danube consume -o table`."""
    return {
        "partition": message.partition,
        "offset": message.offset,
        "publish_time": shown_time(message.publish_time),
        "key": escaped(message.key_bytes),
        "payload": escaped(message.payload),
        "attributes": dict(message.attributes),
    }


def escaped(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def json_line(message: Message) -> bytes:
    return _encode(stored_message(message)) + b"\n"


def yaml_document(message: Message) -> bytes:
    import yaml

    fields = stored_message(message).to_fields()
    text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, explicit_start=True)
    return text.encode("utf-8", "surrogatepass")


def draft_of_line(line: bytes, *, strict: bool = False) -> Draft:
    """Parses a line of JSON. `strict` refuses unknown fields, which are probably misspelled."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise click.UsageError(f"not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError(f"must be a JSON object, got {type(found).__name__}")
    if strict and not found.keys() <= NAMES:
        unknown = next(name for name in found if name not in NAMES)
        raise click.UsageError(f"unknown field {unknown[:100]!r} in a message; known fields: {', '.join(PUBLISHED)}")
    return draft_of(found)


def draft_of(found: Mapping[str, Any]) -> Draft:
    """A message from the fields of a `StoredMessage`, or some of them. Needs `value`, or `payload` or `value_base64`.

    For people who write JSON by hand, values and keys may also be any JSON, and times may be texts.
    """
    payload = "payload" if "payload" in found else "value"
    if payload not in found and "value_base64" not in found:
        raise click.UsageError("value (or payload) is missing; use null to publish a message without one")
    for name, encoding in found.items():
        if name.endswith("_encoding") and encoding and name not in ("key_encoding", f"{payload}_encoding"):
            sentence = f"unknown field {name[:100]!r} in a message; known here: key_encoding, {payload}_encoding"
            raise click.UsageError(sentence)
    attributes = found.get("attributes")
    if attributes is not None and not isinstance(attributes, Mapping):
        raise click.UsageError("attributes must be an object with string values")
    named = {str(name): text_of(value) for name, value in (attributes or {}).items()} or None
    if named is not None and not all(map(is_text, [*named, *named.values()])):
        raise click.UsageError("attributes must be valid UTF-8")
    times = [read_time(found.get(name)) for name in ("event_time", "delivery_time")]
    return Draft(_data(found, payload, "value_base64"), _data(found, "key", "key_base64"), named, *times)


def _data(found: Mapping[str, Any], name: str, as_base64: str) -> bytes | None:
    """The bytes of `name`, in the encoding that another field says, or those of the field `as_base64`."""
    value, encoded, encoding = found.get(name), found.get(as_base64), found.get(f"{name}_encoding")
    if encoding not in (None, "", "text", "base64"):
        raise click.UsageError(f"{name}_encoding must be text or base64, got {encoding!r}")
    if encoded is not None:
        if value is not None:
            raise click.UsageError(f"a message cannot have both {name} and {as_base64}")
        return bytes_of_base64(as_base64, encoded)
    if value is not None and encoding == "base64":
        return bytes_of_base64(name, value)
    if value is None or isinstance(value, bytes):
        return value
    return text_of(value).encode("utf-8", "surrogatepass")


def bytes_of_base64(name: str, text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise click.UsageError(f"{name} is not valid Base64") from None


def text_of(value: Any) -> str:
    """Strings as they are, everything else as JSON: `{"value": {"id": 1}}` publishes the inner object."""
    return value if isinstance(value, str) else to_json(value)
