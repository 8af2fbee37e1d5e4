"""Messages as JSON, YAML and table rows, and JSON as messages. Binary data is Base64, and marked as such."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from pydanube.cli.shell.values import is_text, read_time, shown_time
from pydanube.client import Message

BASE64 = "base64"
# Fields that are published; the others of a message say where it was stored.
PUBLISHED = ("payload", "key", "attributes", "event_time", "delivery_time")
NAMES = frozenset(
    {
        *PUBLISHED,
        *("value", "value_encoding", "payload_encoding", "key_encoding"),
        *("topic", "partition", "offset", "publish_time", "append_time", "producer", "sequence"),
    }
)
to_json = json.JSONEncoder(ensure_ascii=False).encode  # creating an encoder for each message would be slow


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


def text_or_base64(name: str, data: bytes | None) -> dict[str, Any]:
    """`{name: text}`, or `{name: base64, name_encoding: "base64"}` if it is not text."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), f"{name}_encoding": BASE64}


def message_fields(message: Message) -> dict[str, Any]:
    """All fields of a message, under the names that Parquet uses."""
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "publish_time": shown_time(message.publish_time),
        "append_time": shown_time(message.append_time),
        "event_time": shown_time(message.event_time),
        "delivery_time": shown_time(message.delivery_time),
        **text_or_base64("key", message.key_bytes),
        **text_or_base64("payload", message.payload),
        "attributes": dict(message.attributes),
        "producer": message.producer,
        "sequence": message.sequence,
    }


def message_rows(messages: Sequence[Message], *, for_people: bool) -> list[dict[str, Any]]:
    """Rows for `topic peek`. For people, binary data is escaped, as in `danube consume -o table`."""
    rows = [message_fields(each) for each in messages]
    for row, message in zip(rows, messages, strict=True) if for_people else ():
        row.update(key=escaped(message.key_bytes), payload=escaped(message.payload))
    return rows


def escaped(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def json_line(message: Message) -> bytes:
    return to_json(message_fields(message)).encode("utf-8", "surrogatepass") + b"\n"


def yaml_document(message: Message) -> bytes:
    import yaml

    text = yaml.safe_dump(message_fields(message), sort_keys=False, allow_unicode=True, explicit_start=True)
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
    """A message from the fields that `message_fields` returns, or some of them. Needs `payload`, or `value` for it."""
    if "payload" not in found and "value" not in found:
        raise click.UsageError("payload (or value) is missing; use null to publish a message without one")
    attributes = found.get("attributes")
    if attributes is not None and not isinstance(attributes, Mapping):
        raise click.UsageError("attributes must be an object with string values")
    named = {str(name): text_of(value) for name, value in (attributes or {}).items()} or None
    if named is not None and not all(map(is_text, [*named, *named.values()])):
        raise click.UsageError("attributes must be valid UTF-8")
    payload = "value" if "value" in found and "payload" not in found else "payload"
    times = [read_time(found.get(name)) for name in ("event_time", "delivery_time")]
    return Draft(_data(found, payload), _data(found, "key"), named, *times)


def _data(found: Mapping[str, Any], name: str) -> bytes | None:
    value = found.get(name)
    if value is None or isinstance(value, bytes):
        return value
    encoding = found.get(f"{name}_encoding")
    if encoding == BASE64:
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise click.UsageError(f"{name} is marked as base64 but is not valid Base64") from None
    if encoding not in (None, "", "text"):
        raise click.UsageError(f"{name}_encoding must be text or base64, got {encoding!r}")
    return text_of(value).encode("utf-8", "surrogatepass")


def text_of(value: Any) -> str:
    """Strings as they are, everything else as JSON: `{"payload": {"id": 1}}` publishes the inner object."""
    return value if isinstance(value, str) else to_json(value)
