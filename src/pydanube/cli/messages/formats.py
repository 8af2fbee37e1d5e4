r"""How a consumed message is printed: raw, JSON, YAML, a line of a table, or by a format such as '%k %v'.

A format is parsed once. Each `%` letter is one field; `\n`, `\t`, `\0` and `\\` have their meaning in C.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import click

from pydanube.cli.messages.text import json_line, yaml_document
from pydanube.cli.shell.failures import printable
from pydanube.cli.shell.values import shown_time
from pydanube.client import Message

Writer = Callable[[Message], bytes]
_PART = re.compile(r"%(.?)|\\(.?)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "0": b"\0", "\\": b"\\"}
_PAYLOAD_CHARACTERS_MAX = 200  # of a cell; the other formats show all of it

FIELDS: dict[str, tuple[str, Writer]] = {
    "k": ("key", lambda message: message.key_bytes or b""),
    "v": ("value (the payload)", lambda message: message.payload or b""),
    "o": ("offset", lambda message: b"%d" % message.offset),
    "p": ("partition (0 if the topic has none)", lambda message: b"%d" % (message.partition or 0)),
    "t": ("topic", lambda message: message.topic.encode()),
    "T": ("publish time", lambda message: _time(message.publish_time)),
    "a": ("append time, by the broker's clock", lambda message: _time(message.append_time)),
    "e": ("event time, if it has one", lambda message: _time(message.event_time)),
    "h": ("attributes, as name=value,name=value", lambda message: _attributes(message)),
    "s": ("size of the payload in bytes", lambda message: b"%d" % len(message.payload or b"")),
    "r": ("number of earlier deliveries", lambda message: b"%d" % message.redelivery_count),
    "n": ("newline", lambda message: b"\n"),
    "%": ("a percent sign", lambda message: b"%"),
}


def _time(microseconds: int | None) -> bytes:
    return (shown_time(microseconds) or "").encode()


def _attributes(message: Message) -> bytes:
    return ",".join(f"{name}={text}" for name, text in message.attributes.items()).encode()


def raw(message: Message) -> bytes:
    return (message.payload or b"") + b"\n"


def by_format(text: str) -> Writer:
    """Writes each message on a line of its own, in the format `text`."""
    parts: list[bytes | Writer] = []
    at = 0
    for found in _PART.finditer(text):
        parts.append(text[at : found.start()].encode("utf-8", "surrogateescape"))
        at = found.end()
        if found[1] is not None:
            if found[1] not in FIELDS:
                raise click.UsageError(
                    f"%{found[1]} is not a known format field; the fields are {' '.join('%' + n for n in FIELDS)}"
                )
            parts.append(FIELDS[found[1]][1])
        else:
            parts.append(_ESCAPES.get(found[2], found[0].encode("utf-8", "surrogateescape")))
    parts.append(text[at:].encode("utf-8", "surrogateescape") + b"\n")
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


TABLE_HEADER = b"PARTITION  OFFSET      PUBLISHED                    KEY               PAYLOAD\n"


def table_line(message: Message) -> bytes:
    """A row with columns of fixed width, so that rows can be printed as messages arrive."""
    key = "-" if message.key is None else _cell(message.key)
    partition = "-" if message.partition is None else str(message.partition)
    payload = "-" if message.payload is None else _cell(message.payload.decode("utf-8", "backslashreplace"))
    published = shown_time(message.publish_time) or ""
    return f"{partition:<9}  {message.offset:<10}  {published:<27}  {key:<16}  {payload}\n".encode("utf-8", "replace")


def _cell(text: str) -> str:
    shown = printable(text[:_PAYLOAD_CHARACTERS_MAX])
    return shown + "…" if len(text) > _PAYLOAD_CHARACTERS_MAX else shown


def writer_of(output: str, format: str | None) -> Writer:
    if format is not None:
        return by_format(format)
    return {"raw": raw, "json": json_line, "yaml": yaml_document, "table": table_line}[output]
