"""The sink `iceberg`: a table of an Iceberg catalog."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydanube.base.errors import OptionInvalid
from pydanube.base.redaction import is_secret
from pydanube.pipeline.sinks.tables import TransactionalTable, letter_columns, parse_table
from pydanube.pipeline.spec.fields import Section, absolute, check_no_secrets, parse_location, shown
from pydanube.pipeline.spec.locations import scheme_of
from pydanube.pipeline.spec.plan import Spec, check_keys, table_options
from pydanube.pipeline.spec.sinks import Sink
from pydanube.pipeline.targets.iceberg.identity import iceberg_identity

if TYPE_CHECKING:
    import pyarrow as pa

    from pydanube.pipeline.targets.iceberg.target import IcebergTarget

CATALOG_TYPES = ("sql", "rest", "hive", "glue", "dynamodb", "bigquery", "in-memory")
_CATALOG = ("catalog", "type", "uri", "warehouse")
_TABLE = re.compile(r"[^.\s]+(\.[^.\s]+)+")


@dataclass(frozen=True, kw_only=True)
class IcebergSink(TransactionalTable):
    kind: ClassVar[str] = "iceberg"
    table: str
    catalog: str = "default"
    type: str | None = None
    uri: str | None = None
    warehouse: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, section: Section) -> Self:
        options = parse_table(section)
        keys = ("table", *_CATALOG, "properties")
        inner = Section(section.key("iceberg"), section.raw("iceberg"), keys, section.folder)
        table = inner.text("table")
        if not _TABLE.fullmatch(table):
            raise inner.wrong("table", f"must be a namespace and a name, as in shop.orders, not {shown(table)}")
        return cls(
            table=table,
            properties=_properties(inner),
            catalog=inner.text("catalog", "default"),
            type=inner.one_of("type", CATALOG_TYPES) if "type" in inner else None,
            uri=_catalog_uri(inner),
            warehouse=_warehouse(inner),
            **options,
        )

    @classmethod
    def target(cls, spec: Spec) -> IcebergTarget:
        from pydanube.pipeline.targets.iceberg.table import TableAddress
        from pydanube.pipeline.targets.iceberg.target import IcebergTarget

        check_keys("a target iceberg", spec, ("kind", "table", *_CATALOG, "properties", *cls.keys))
        texts = {name: spec.get(name) for name in _CATALOG}
        for name, text in (("table", spec.get("table") or ""), *texts.items()):
            if text is not None and not isinstance(text, str):
                raise OptionInvalid(f"a target iceberg: {name} must be a string")
        properties = spec.get("properties") or {}
        if not isinstance(properties, dict) or not all(
            isinstance(each, str) for pair in properties.items() for each in pair
        ):
            raise OptionInvalid("a target iceberg: properties must map names to strings")
        table = tuple(str(spec.get("table") or "").split("."))
        address = TableAddress(table, **texts, properties=tuple(sorted(properties.items())))
        address.check()
        return IcebergTarget(address, **table_options(spec))

    def spec(self, url: str) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ("table", *_CATALOG)}
        return {"kind": "iceberg", **named, "properties": dict(self.properties), **self.table_spec()}

    @property
    def label(self) -> str:
        return f"iceberg:{self.catalog}.{self.table}"

    @property
    def locations(self) -> tuple[str, ...]:
        return () if self.warehouse is None else (self.warehouse,)

    @property
    def packages(self) -> Mapping[str, str]:
        return {"pyiceberg": "an Iceberg table"}

    @property
    def identity(self) -> str:
        return iceberg_identity(self.catalog, self.uri, self.warehouse, self.table)

    def overlaps(self, other: Sink) -> bool:
        return isinstance(other, IcebergSink) and self.identity == other.identity

    def batches(self) -> Iterator[pa.RecordBatch]:
        address = self.target(self.spec("")).address
        with address.typed_errors():
            table = address.load()
            columns = letter_columns(table.schema().column_names)
            yield from table.scan(selected_fields=columns).to_arrow_batch_reader()


def _properties(section: Section) -> dict[str, str]:
    properties = section.scalars("properties")
    for name, value in properties.items():
        if is_secret(name.lower().replace("-", "_").replace(".", "_")):
            raise section.wrong(
                f"properties.{name}",
                "must not be set here: it is a credential, and credentials come from the environment",
            )
        if scheme_of(value):
            check_no_secrets(section.key(f"properties.{name}"), value)
    return properties


def _catalog_uri(section: Section) -> str | None:
    """The address of the catalog. An SQLite file is relative to the declaration, like every other path."""
    uri = section.maybe_text("uri")
    if uri is None:
        return None
    check_no_secrets(section.key("uri"), uri)
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////") and uri != "sqlite:///:memory:":
        return "sqlite:///" + absolute(uri.removeprefix("sqlite:///"), section.folder)
    return uri


def _warehouse(section: Section) -> str | None:
    """A name in the catalog, a URL, or a path."""
    text = section.maybe_text("warehouse")
    if text is None:
        return None
    if scheme_of(text) or text.startswith(("/", "~", ".")):
        location = parse_location(section.key("warehouse"), text, section.folder)
        return location if scheme_of(location) else f"file://{location}"
    if section.maybe_text("type") == "sql":
        return f"file://{absolute(text, section.folder)}"
    return text
