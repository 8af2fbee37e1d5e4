"""Where the rows of a pipeline come from: a topic, files or a generator, as declared. Pure but for schema files."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from pydanube.base.errors import DanubeError, FlowInvalid
from pydanube.base.limits import KIB, NAME_BYTES_MAX, OFFSET_MAX
from pydanube.base.redaction import is_secret
from pydanube.pipeline.spec.fields import Section, absolute, check_no_secrets, parse_size, shown
from pydanube.spark.decode import decoder_of
from pydanube.spark.decode_options import ValueOptions
from pydanube.spark.options import DEFAULT_URL, Options, whole_name

KINDS = ("topic", "topics", "pattern", "files", "rate")
RAW, JSON, AVRO, PROTOBUF = "raw", "json", "avro", "protobuf"
TOPIC_FORMATS = (RAW, JSON, AVRO, PROTOBUF)
FILE_FORMATS = ("csv", "json", "parquet")
PERMISSIVE, FAILFAST = "permissive", "failfast"
STRUCT, COLUMNS = "struct", "columns"  # how a decoded row has what is known of its message
COMMON = ("expect", "mode")
OF_TOPICS = (
    "url",
    "ca",
    "start",
    "subscription",
    "release",
    "max_records",
    "max_bytes",
    "format",
    "schema",
    "attributes",
    "message",
    "tombstones",
    "fail_on_data_loss",
    "objects_url",
)
KEEP, SKIP = "keep", "skip"
OF_FILES = ("format", "schema", "options", "max_files")
RECORDS_MAX = 1_000_000  # of one trigger, if nothing is said
SCHEMA_FILE_BYTES_MAX = 512 * KIB


@dataclass(frozen=True, slots=True)
class Schema:
    """How payloads become columns: DDL, Avro's JSON, or a FileDescriptorSet of Protobuf in base64 and a message."""

    text: str
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    topics: tuple[str, ...]  # whole names; or
    pattern: str | None
    url: str | None
    ca: str | None
    start: str  # earliest, latest, an ISO time or JSON of offsets
    subscription: str | None
    release: bool  # what was read may be deleted, if nobody else needs it
    max_records: int
    max_bytes: int | None
    format: str
    schema: Schema | None
    mode: str
    expect: tuple[str, ...]
    attributes: bool
    message: str
    tombstones: str  # messages without a payload: keep or skip
    fail_on_data_loss: bool
    objects_url: str | None

    @property
    def label(self) -> str:
        return f"topic {', '.join(self.topics)}" if self.topics else f"topics {self.pattern}"

    def reads(self, topic: str) -> bool:
        return topic in self.topics or (self.pattern is not None and fnmatchcase(topic, self.pattern))

    def starting(self, start: str | None = None) -> dict[str, str]:
        """The option of the data source that says where to begin."""
        text = start or self.start
        if text in ("earliest", "latest") or text.startswith("{"):
            return {"startingOffsets": text}
        return {"startingTimestamp": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    path: str
    format: str
    schema: Schema
    options: Mapping[str, str]
    max_files: int | None
    mode: str
    expect: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.format} files in {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSource:
    rows_per_second: int
    mode: str
    expect: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.rows_per_second} rows per second from a generator"


Source = TopicSource | FileSource | RateSource


def parse_source(found: object, folder: str, pipeline: str, *, dead_letters: bool) -> Source:
    section = Section("source", found, (*KINDS, *OF_TOPICS, *OF_FILES, *COMMON), folder)
    kinds = [name for name in KINDS if name in section]
    if len(kinds) != 1:
        said = "both " + " and ".join(kinds) if kinds else "none"
        raise FlowInvalid(f"source: must have one of {', '.join(KINDS)}; it has {said}")
    kind = kinds[0]
    allowed = {"files": OF_FILES, "rate": ()}.get(kind, OF_TOPICS)
    for name in section:
        if name not in (kind, *allowed, *COMMON):
            raise section.wrong(name, f"does not apply to a source of {kind}")
    mode = _mode(section, dead_letters)
    expect = section.names("expect")
    if kind == "files":
        return _files(section, mode, expect)
    if kind == "rate":
        return _rate(section, mode, expect)
    return _topic(section, pipeline, mode, expect)


def _mode(section: Section, dead_letters: bool) -> str:
    mode = section.one_of("mode", (PERMISSIVE, FAILFAST), PERMISSIVE if dead_letters else FAILFAST)
    if mode == PERMISSIVE and not dead_letters:
        raise section.wrong("mode", "permissive needs dead_letters, where rows that do not fit are kept")
    return mode


# -- topics ------------------------------------------------------------------------------------------------------------


def _topic(section: Section, pipeline: str, mode: str, expect: tuple[str, ...]) -> TopicSource:
    source = TopicSource(
        topics=_topics(section),
        pattern=_pattern(section),
        url=parse_url(section),
        ca=parse_ca(section),
        start=parse_start(section.key("start"), section.raw("start")) if "start" in section else "earliest",
        subscription=_subscription(section, pipeline),
        release=section.flag("release", False),
        max_records=section.whole("max_records", 1, OFFSET_MAX, RECORDS_MAX) or RECORDS_MAX,
        max_bytes=_max_bytes(section),
        format=section.one_of("format", TOPIC_FORMATS, RAW),
        schema=_schema(section),
        mode=mode,
        expect=expect,
        attributes=section.flag("attributes", False),
        message=section.one_of("message", (STRUCT, COLUMNS), STRUCT),
        tombstones=section.one_of("tombstones", (KEEP, SKIP), KEEP),
        fail_on_data_loss=section.flag("fail_on_data_loss", True),
        objects_url=section.maybe_text("objects_url"),
    )
    if source.release and source.subscription is None:
        raise section.wrong("release", "needs a subscription")
    if "message" in section and source.format == RAW:
        raise section.wrong("message", "needs decoded payloads; a raw topic always has these columns")
    if source.objects_url is not None:
        _check_options(section, "objects_url", {"topic": "x", "objects.url": source.objects_url})
    return source


def _topics(section: Section) -> tuple[str, ...]:
    if "pattern" in section:
        return ()
    if "topic" in section:
        name = section.text("topic")
        if "," in name:
            raise section.wrong("topic", "must be one name; use a list under topics for several")
        return (parse_topic_name(section.key("topic"), name),)
    names = section.names("topics", required=True)
    found = [parse_topic_name(f"{section.key('topics')}[{at}]", name) for at, name in enumerate(names)]
    return tuple(sorted(set(found)))


def parse_topic_name(path: str, name: str) -> str:
    try:
        return whole_name(name)
    except DanubeError as error:
        raise FlowInvalid(f"{path}: {error}") from None


def _pattern(section: Section) -> str | None:
    if "pattern" not in section:
        return None
    return _check_options(section, "pattern", {"topicPattern": section.text("pattern")}).pattern


def parse_url(section: Section) -> str | None:
    if (url := section.maybe_text("url")) is None:
        return None
    check_no_secrets(section.key("url"), url)
    return _check_options(section, "url", {"topic": "x", "url": url}).url


def parse_ca(section: Section) -> str | None:
    ca = section.maybe_text("ca")
    return None if ca is None else absolute(ca, section.folder)


def _check_options(section: Section, name: str, options: Mapping[str, str]) -> Options:
    """As the data source itself reads them."""
    try:
        return Options.of({"url": DEFAULT_URL, **options}, streaming=True)
    except DanubeError as error:
        raise section.wrong(name, str(error)) from None


def parse_start(path: str, found: Any) -> str:
    """As the source takes it: earliest, latest, a time with its zone, or offsets as JSON."""
    if isinstance(found, datetime):
        found = found.isoformat()
    if isinstance(found, Mapping):
        try:
            found = json.dumps(found)
        except (TypeError, ValueError, RecursionError):
            raise FlowInvalid(f'{path}: must be offsets, as in {{"orders": {{"0": 120}}}}') from None
    if not isinstance(found, str):
        raise FlowInvalid(f"{path}: must be earliest, latest, a time or offsets as JSON, not {shown(found)}")
    text = found.strip()
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    kind = "startingOffsets" if text.startswith("{") else "startingTimestamp"
    if kind == "startingTimestamp" and not text[:1].isdigit():
        close = get_close_matches(text.lower()[:20], ("earliest", "latest"), 1, 0.5)
        end = (
            f"did you mean {close[0]}?"
            if close
            else "use earliest, latest, a time such as 2026-01-31T12:00:00Z, or offsets as JSON"
        )
        raise FlowInvalid(f"{path}: {shown(text)} is not a position; {end}")
    try:
        Options.of({"url": DEFAULT_URL, "topic": "x", kind: text}, streaming=True)
    except DanubeError as error:
        raise FlowInvalid(f"{path}: {str(error).removeprefix(kind).lstrip(': ')}") from None
    except (ValueError, OverflowError, RecursionError):
        raise FlowInvalid(f"{path}: {shown(text)} is not a position") from None
    return text


def _subscription(section: Section, pipeline: str) -> str | None:
    found = section.raw("subscription") if "subscription" in section else True
    if isinstance(found, bool):
        return pipeline if found else None
    name = section.text("subscription")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise section.wrong("subscription", f"must be true, false or a name of 1 to {NAME_BYTES_MAX} bytes")
    return name


def _max_bytes(section: Section) -> int | None:
    if "max_bytes" not in section:
        return None
    return parse_size(section.key("max_bytes"), section.raw("max_bytes"), OFFSET_MAX)


def _schema(section: Section) -> Schema | None:
    kind = section.one_of("format", TOPIC_FORMATS, RAW)
    if kind == RAW:
        if "schema" in section:
            raise section.wrong("schema", "needs decoded payloads: set format to json, avro or protobuf")
        return None
    if "schema" not in section:
        raise section.wrong("schema", f"is missing: format {kind} needs it")
    if kind == PROTOBUF:
        schema = _protobuf(section)
    else:
        schema = Schema(_avro(section) if kind == AVRO else section.text("schema"))
    _check_schema(section, kind, schema)
    return schema


def _check_schema(section: Section, kind: str, schema: Schema) -> None:
    """As workers will read it. Where what reads it is not installed, it is looked at later."""
    try:
        decoder_of(ValueOptions(kind, schema.text, schema.message))
    except DanubeError as error:
        reason = " ".join(str(error).replace("value.schema", "it").split())
        raise section.wrong("schema", reason) from None
    except RecursionError:
        raise section.wrong("schema", "is nested too deeply") from None
    except ModuleNotFoundError:
        return


def _avro(section: Section) -> str:
    """JSON, of the file if it is the name of one."""
    found = section.raw("schema")
    if isinstance(found, Mapping | list):
        try:
            return json.dumps(found)
        except (TypeError, ValueError, RecursionError):
            raise section.wrong("schema", "must be an Avro schema in JSON, or the path of one") from None
    text = section.text("schema")
    if not text.lstrip().startswith(("{", "[", '"')):
        data = _content(section, "schema", absolute(text, section.folder))
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise section.wrong("schema", f"{text} is not UTF-8") from None
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise section.wrong("schema", f"is not valid JSON: {reason}") from None
    return text


def _protobuf(section: Section) -> Schema:
    inner = Section(section.key("schema"), section.raw("schema"), ("descriptor", "message"), section.folder)
    message = inner.text("message")
    content = _content(inner, "descriptor", absolute(inner.text("descriptor"), section.folder))
    return Schema(base64.b64encode(content).decode(), message)


def _content(section: Section, name: str, path: str) -> bytes:
    try:
        if os.path.isfile(path) and os.path.getsize(path) > SCHEMA_FILE_BYTES_MAX:
            raise section.wrong(name, f"{path} has more than {SCHEMA_FILE_BYTES_MAX} bytes")
        if os.path.exists(path) and not os.path.isfile(path):
            raise section.wrong(name, f"{path} is not a file")
        with open(path, "rb") as file:
            return file.read(SCHEMA_FILE_BYTES_MAX)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not a path"
        raise section.wrong(name, f"{shown(path)} cannot be read: {reason}") from None


# -- files and a generator ---------------------------------------------------------------------------------------------


def _files(section: Section, mode: str, expect: tuple[str, ...]) -> FileSource:
    if "schema" not in section:
        raise section.wrong("schema", "is missing: a stream of files needs its columns, as in id BIGINT, name STRING")
    options = section.scalars("options")
    for name in options:
        if name.lower() in ("path", "mode", "columnnameofcorruptrecord", "maxfilespertrigger"):
            raise section.wrong(f"options.{name}", "must be set by a key of source")
        if is_secret(name.lower()):
            raise section.wrong(
                f"options.{name}", "must not be set here: it is a credential, and credentials come from the environment"
            )
    if "format" not in section:
        raise section.wrong("format", f"is missing: use one of {', '.join(FILE_FORMATS)}")
    return FileSource(
        path=section.place("files"),
        format=section.one_of("format", FILE_FORMATS),
        schema=Schema(section.text("schema")),
        options=options,
        max_files=section.whole("max_files", 1, OFFSET_MAX),
        mode=mode,
        expect=expect,
    )


def _rate(section: Section, mode: str, expect: tuple[str, ...]) -> RateSource:
    inner = Section("source.rate", section.raw("rate"), ("rows_per_second",), section.folder)
    rows = inner.whole("rows_per_second", 1, 10_000_000, 1) or 1
    return RateSource(rows_per_second=rows, mode=mode, expect=expect)


def can_fail(source: Source) -> bool:
    """Whether a row may be found not to fit."""
    decoded = source.format not in (RAW, "parquet") if not isinstance(source, RateSource) else False
    return source.mode == PERMISSIVE and (decoded or bool(source.expect))
