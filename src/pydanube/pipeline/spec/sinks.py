"""Where the rows of a pipeline go, as declared, and what each target is told of it. Pure, but for links of paths."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydanube.base.errors import FlowInvalid
from pydanube.base.limits import PARTITIONS_MAX, SECOND
from pydanube.base.redaction import is_secret
from pydanube.pipeline.spec.fields import (
    Duration,
    Section,
    absolute,
    check_no_secrets,
    parse_place,
    scheme_of,
    shown,
)
from pydanube.pipeline.spec.source import parse_ca, parse_topic_name, parse_url
from pydanube.pipeline.targets.identity import iceberg_identity, place_identity
from pydanube.pipeline.targets.maintenance import EXPIRE_SECONDS, EXPIRE_SECONDS_MAX, EXPIRE_SECONDS_MIN

KINDS = ("delta", "iceberg", "parquet", "topic", "console")
OF_KIND: dict[str, tuple[str, ...]] = {
    "delta": ("partition_by", "merge_schema", "upsert", "maintain"),
    "iceberg": ("partition_by", "merge_schema", "upsert", "maintain"),
    "parquet": ("partition_by",),
    "topic": ("url", "ca", "key", "value", "create_partitions"),
    "console": (),
}
ALL_KEYS = ("partition_by", "merge_schema", "upsert", "maintain", "url", "ca", "key", "value", "create_partitions")
CATALOG_TYPES = ("sql", "rest", "hive", "glue", "dynamodb", "bigquery", "in-memory")
SINKS_MAX = 16
CONSOLE_ROWS = 20
TOMBSTONE = "tombstone"  # a message without a payload
EXPIRE = Duration(EXPIRE_SECONDS * SECOND)
_TABLE = re.compile(r"[^.\s]+(\.[^.\s]+)+")


@dataclass(frozen=True, slots=True)
class Upsert:
    """By which columns rows replace each other, which of two is newer, and what deletes."""

    keys: tuple[str, ...]
    sequence_by: str | None  # None: the one that comes later in the topic
    delete_when: str | None = None


@dataclass(frozen=True, slots=True)
class Maintain:
    """What a pipeline does for a table beside writing to it; `expire` None: nothing that was replaced goes."""

    compact: bool = False
    expire: Duration | None = None

    def spec(self) -> dict[str, Any]:
        return {"compact": self.compact, "expire_seconds": None if self.expire is None else int(self.expire.seconds)}


@dataclass(frozen=True, slots=True)
class TableSink:
    """Delta or a folder of Parquet."""

    kind: str
    uri: str
    partition_by: tuple[str, ...]
    merge_schema: bool
    upsert: Upsert | None
    maintain: Maintain = Maintain()

    @property
    def label(self) -> str:
        return f"{self.kind}:{self.uri}"

    @property
    def places(self) -> tuple[str, ...]:
        return (self.uri,)

    def spec(self, url: str) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": self.kind, "uri": self.uri, "partition_by": list(self.partition_by)}
        if self.kind == "delta":
            found |= {"merge_schema": self.merge_schema, "upsert": _upsert_spec(self.upsert)}
            found["maintain"] = self.maintain.spec()
        return found


@dataclass(frozen=True, slots=True)
class IcebergSink:
    table: str
    catalog: str
    type: str | None
    uri: str | None
    warehouse: str | None
    properties: Mapping[str, str]
    partition_by: tuple[str, ...]
    merge_schema: bool
    upsert: Upsert | None
    maintain: Maintain = Maintain()
    kind: str = "iceberg"

    @property
    def label(self) -> str:
        return f"iceberg:{self.catalog}.{self.table}"

    @property
    def places(self) -> tuple[str, ...]:
        return () if self.warehouse is None else (self.warehouse,)

    def spec(self, url: str) -> dict[str, Any]:
        return {
            "kind": "iceberg",
            "table": self.table,
            "catalog": self.catalog,
            "type": self.type,
            "uri": self.uri,
            "warehouse": self.warehouse,
            "properties": dict(self.properties),
            "partition_by": list(self.partition_by),
            "merge_schema": self.merge_schema,
            "upsert": _upsert_spec(self.upsert),
            "maintain": self.maintain.spec(),
        }


@dataclass(frozen=True, slots=True)
class TopicSink:
    topic: str
    url: str | None
    ca: str | None
    key: str | None
    value: str | None
    create_partitions: int | None  # if the topic is not there when the pipeline starts
    kind: str = "topic"

    @property
    def label(self) -> str:
        return f"topic:{self.topic}"

    @property
    def places(self) -> tuple[str, ...]:
        return ()

    def spec(self, url: str) -> dict[str, Any]:
        return {
            "kind": "topic",
            "topic": self.topic,
            "url": self.url or url,
            "ca": self.ca,
            "key": self.key,
            "value": self.value,
            "partitions": self.create_partitions,
        }


@dataclass(frozen=True, slots=True)
class ConsoleSink:
    rows: int
    kind: str = "console"

    @property
    def label(self) -> str:
        return "the console"

    @property
    def places(self) -> tuple[str, ...]:
        return ()


Target = TableSink | IcebergSink | TopicSink
Sink = Target | ConsoleSink


def _upsert_spec(upsert: Upsert | None) -> dict[str, Any] | None:
    return None if upsert is None else {"keys": list(upsert.keys), "sequence_by": upsert.sequence_by}


def parse_sinks(found: object, folder: str) -> tuple[Sink, ...]:
    """One, or a list. The console stands alone."""
    if not isinstance(found, list | tuple):
        return (parse_sink("sink", found, folder),)
    if not 0 < len(found) <= SINKS_MAX:
        raise FlowInvalid(f"sink: must be one sink or a list of 1 to {SINKS_MAX}")
    sinks = tuple(parse_sink(f"sink[{at}]", each, folder) for at, each in enumerate(found))
    if len(sinks) > 1 and any(isinstance(each, ConsoleSink) for each in sinks):
        raise FlowInvalid("sink: console cannot be combined with other sinks; look at what they wrote instead")
    return sinks


def parse_dead_letters(found: object, folder: str) -> Target | None:
    if found is None:
        return None
    if isinstance(found, list | tuple):
        raise FlowInvalid("dead_letters: must be one sink, not a list")
    sink = parse_sink("dead_letters", found, folder)
    if isinstance(sink, ConsoleSink):
        raise FlowInvalid("dead_letters: must be stored, so they cannot go to the console")
    if not isinstance(sink, TopicSink) and sink.upsert is not None:
        raise FlowInvalid("dead_letters.upsert: dead letters can only be appended")
    chosen = isinstance(found, Mapping) and "merge_schema" in found
    if isinstance(sink, TopicSink) or sink.kind == "parquet" or chosen:
        return sink
    return replace(sink, merge_schema=True)  # their columns are the pipeline's own: an older table gets what it lacks


def parse_sink(path: str, found: object, folder: str) -> Sink:
    if isinstance(found, str):
        raise FlowInvalid(f"{path}: must name its kind, as in delta: {shown(found)[1:-1]}")
    if isinstance(found, Mapping) and "console" in found and found["console"] in (None, True):
        found = {**found, "console": {}}  # as in `console:` with nothing behind it
    section = Section(path, found, (*KINDS, *ALL_KEYS), folder)
    kinds = [name for name in KINDS if name in section]
    if len(kinds) != 1:
        said = "both " + " and ".join(kinds) if kinds else "none"
        raise FlowInvalid(f"{path}: must have one of {', '.join(KINDS)}; it has {said}")
    kind = kinds[0]
    for name in section:
        if name != kind and name not in OF_KIND[kind]:
            raise section.wrong(name, _not_for(name, kind))
    if kind == "console":
        inner = Section(section.key("console"), section.raw("console"), ("rows",))
        return ConsoleSink(inner.whole("rows", 1, 100_000, CONSOLE_ROWS) or CONSOLE_ROWS)
    if kind == "topic":
        return _topic(section)
    partition_by, merge = section.names("partition_by"), section.flag("merge_schema", False)
    upsert, maintain = _upsert(section), _maintain(section)
    if kind == "iceberg":
        return _iceberg(section, partition_by, merge, upsert, maintain)
    return TableSink(kind, section.place(kind), partition_by, merge, upsert, maintain)


def _not_for(name: str, kind: str) -> str:
    kinds = [each for each, names in OF_KIND.items() if name in names]
    return f"works only with {' and '.join(kinds)}, not with {kind}"


def _upsert(section: Section) -> Upsert | None:
    if "upsert" not in section:
        return None
    inner = Section(section.key("upsert"), section.raw("upsert"), ("keys", "sequence_by", "delete_when"))
    return Upsert(
        inner.names("keys", required=True),
        inner.maybe_text("sequence_by"),
        inner.one_of("delete_when", (TOMBSTONE,)) if "delete_when" in inner else None,
    )


def _maintain(section: Section) -> Maintain:
    found = section.raw("maintain") if "maintain" in section else False
    if isinstance(found, bool):
        return Maintain(True, EXPIRE) if found else Maintain()
    inner = Section(section.key("maintain"), found, ("compact", "expire"))
    compact = inner.flag("compact", True)
    if "expire" in inner and inner.raw("expire") is False:
        return Maintain(compact)
    expire = inner.duration("expire", EXPIRE)
    if not EXPIRE_SECONDS_MIN <= expire.seconds <= EXPIRE_SECONDS_MAX:
        raise inner.wrong("expire", f"must be 1 hour to 6 days, or false, not {shown(inner.raw('expire'))}")
    return Maintain(compact, expire)


def _topic(section: Section) -> TopicSink:
    return TopicSink(
        topic=parse_topic_name(section.key("topic"), section.text("topic")),
        url=parse_url(section),
        ca=parse_ca(section),
        key=section.maybe_text("key"),
        value=section.maybe_text("value"),
        create_partitions=section.whole("create_partitions", 1, PARTITIONS_MAX),
    )


def _iceberg(
    section: Section, partition_by: tuple[str, ...], merge: bool, upsert: Upsert | None, maintain: Maintain
) -> IcebergSink:
    keys = ("table", "catalog", "type", "uri", "warehouse", "properties")
    inner = Section(section.key("iceberg"), section.raw("iceberg"), keys, section.folder)
    table = inner.text("table")
    if not _TABLE.fullmatch(table):
        raise inner.wrong("table", f"must be a namespace and a name, as in shop.orders, not {shown(table)}")
    properties = inner.scalars("properties")
    for name, value in properties.items():
        if is_secret(name.lower().replace("-", "_").replace(".", "_")):
            raise inner.wrong(
                f"properties.{name}",
                "must not be set here: it is a credential, and credentials come from the environment",
            )
        if scheme_of(value):
            check_no_secrets(inner.key(f"properties.{name}"), value)
    return IcebergSink(
        table=table,
        catalog=inner.text("catalog", "default"),
        type=inner.one_of("type", CATALOG_TYPES) if "type" in inner else None,
        uri=_catalog_uri(inner),
        warehouse=_warehouse(inner),
        properties=properties,
        partition_by=partition_by,
        merge_schema=merge,
        upsert=upsert,
        maintain=maintain,
    )


def _catalog_uri(section: Section) -> str | None:
    """SQLite's file is beside the declaration, as every other path is."""
    uri = section.maybe_text("uri")
    if uri is None:
        return None
    check_no_secrets(section.key("uri"), uri)
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////") and uri != "sqlite:///:memory:":
        return "sqlite:///" + absolute(uri.removeprefix("sqlite:///"), section.folder)
    return uri


def _warehouse(section: Section) -> str | None:
    """A name in a catalog, a URL, or a path."""
    text = section.maybe_text("warehouse")
    if text is None:
        return None
    if scheme_of(text) or text.startswith(("/", "~", ".")):
        place = parse_place(section.key("warehouse"), text, section.folder)
        return place if scheme_of(place) else f"file://{place}"
    if section.maybe_text("type") == "sql":
        return f"file://{absolute(text, section.folder)}"
    return text


# -- what sinks must be together ---------------------------------------------------------------------------------------


def check_sinks(sinks: Sequence[Sink], dead_letters: Target | None, output_mode: str) -> None:
    for at, sink in enumerate(sinks):
        path = "sink" if len(sinks) == 1 else f"sink[{at}]"
        if isinstance(sink, ConsoleSink) and dead_letters is not None:
            raise FlowInvalid("dead_letters: cannot be combined with a console, which stores nothing")
        if output_mode == "complete" and sink.kind in ("topic", "parquet"):
            raise FlowInvalid(
                f"{path}: a {sink.kind} cannot be replaced as a whole, which output_mode complete requires"
            )
        if output_mode == "complete" and isinstance(sink, TableSink | IcebergSink) and sink.upsert is not None:
            raise FlowInvalid(
                f"{path}.upsert: cannot be combined with output_mode complete, which replaces all rows; use update"
            )
    named = [("sink" if len(sinks) == 1 else f"sink[{at}]", each) for at, each in enumerate(sinks)]
    if dead_letters is not None:
        named.append(("dead_letters", dead_letters))
    for at, (path, sink) in enumerate(named):
        for other, known in named[:at]:
            if same_place(sink, known):
                raise FlowInvalid(f"{path}: writes to the same place as {other}: {known.label}")


def same_place(one: Sink, other: Sink) -> bool:
    """Whether rows of the two would be mixed; a folder in the other's folder counts too."""
    if isinstance(one, TopicSink) and isinstance(other, TopicSink):
        return (one.url, one.topic) == (other.url, other.topic)
    if isinstance(one, IcebergSink) and isinstance(other, IcebergSink):
        return _iceberg_identity(one) == _iceberg_identity(other)
    if isinstance(one, TableSink) and isinstance(other, TableSink):
        return within(one.uri, other.uri) or within(other.uri, one.uri)
    return False


def _iceberg_identity(sink: IcebergSink) -> str:
    return iceberg_identity(sink.catalog, sink.uri, sink.warehouse, sink.table)


def within(inner: str, outer: str) -> bool:
    """Whether a place is another, or lies in it, by whatever names."""
    one, two = place_identity(inner), place_identity(outer)
    return one == two or one.startswith(two.rstrip("/") + "/")
