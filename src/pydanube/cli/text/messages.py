"""Messages as text: JSON and tables of them, and back again. Binary data is Base64, and marked as such."""

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
PUBLISHED = (
    "payload",
    "key",
    "attributes",
    "event_time",
    "delivery_time",
)  # of what a message has; the rest is its place
NAMES = frozenset(
    {
        *PUBLISHED,
        *("value", "value_encoding", "payload_encoding", "key_encoding"),
        *("topic", "partition", "offset", "publish_time", "append_time", "producer", "sequence"),
    }
)
to_json = json.JSONEncoder(ensure_ascii=False).encode  # made once, not for each message


class Draft(NamedTuple):
    """A message to be published."""

    payload: bytes | None
    key: bytes | None = None
    attributes: dict[str, str] | None = None
    event_time: int | None = None
    delivery_time: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Of the producer's `send`."""
        return {
            "key": self.key,
            "attributes": self.attributes,
            "event_time": self.event_time,
            "delivery_time": self.delivery_time,
        }


def text_or_base64(name: str, data: bytes | None) -> dict[str, Any]:
    """`{name: text}`, or `{name: base64, name_encoding: "base64"}` where it is no text."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), f"{name}_encoding": BASE64}


def described(message: Message) -> dict[str, Any]:
    """Everything that is known of it, under the names that Parquet uses."""
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


def peeked(messages: Sequence[Message], *, for_people: bool) -> list[dict[str, Any]]:
    """For people, binary data is written with escapes, as `danube consume -o table` does."""
    rows = [described(each) for each in messages]
    for row, message in zip(rows, messages, strict=True) if for_people else ():
        row.update(key=with_escapes(message.key_bytes), payload=with_escapes(message.payload))
    return rows


def with_escapes(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def json_line(message: Message) -> bytes:
    return to_json(described(message)).encode("utf-8", "surrogatepass") + b"\n"


def yaml_document(message: Message) -> bytes:
    import yaml

    text = yaml.safe_dump(described(message), sort_keys=False, allow_unicode=True, explicit_start=True)
    return text.encode("utf-8", "surrogatepass")


def draft_of_line(line: bytes, *, strict: bool = False) -> Draft:
    """`strict` refuses names that nobody would publish: they are misspelled."""
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
    """Of what `described` says, or of less; `value` is understood as `payload`. One of the two must be there."""
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
    """A text as it is, anything else as JSON: `{"payload": {"id": 1}}` publishes the inner object."""
    return value if isinstance(value, str) else to_json(value)
