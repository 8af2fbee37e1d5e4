"""Checks whether the rows of a pipeline fit a Delta table: its features, partition columns, columns and types.

The files of tasks must be as the table requires, because they are not checked again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema

from pydanube.base.errors import SchemaMismatch, TableUnsupported

_HARMLESS = frozenset(  # features that do not concern files, or whose use is checked below
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "deletionVectors",
        "variantType",
        "generatedColumns",
        "columnMapping",
        "identityColumns",
        "timestampNtz",
        "vacuumProtocolCheck",
    }
)
_LEGACY_VERSION_MAX = 6  # above it, a table lists its features
_NTZ = "timestampNtz"
_NOT_IN_NAMES = " ,;{}()\n\t="  # some readers of Parquet fail


def check_features(table: DeltaTable, *, changes_rows: bool) -> None:
    """Raises `TableUnsupported`, which names the feature. Upserts and complete mode are `changes_rows`."""
    protocol, metadata = table.protocol(), table.metadata()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    if changes_rows and "deletionVectors" in features:
        raise TableUnsupported("the table has deletion vectors, which hide rows: it can only be appended to")
    if unknown := sorted(features - _HARMLESS):
        raise TableUnsupported(f"the table has the feature {unknown[0]}")
    if protocol.min_writer_version > _LEGACY_VERSION_MAX and not protocol.writer_features:
        raise TableUnsupported(f"the table needs writer version {protocol.min_writer_version}")
    settings = {name.lower(): str(value).lower() for name, value in metadata.configuration.items()}
    if constraints := sorted(name for name in metadata.configuration if name.startswith("delta.constraints.")):
        name = constraints[0].removeprefix("delta.constraints.")
        raise TableUnsupported(f"the table has the check constraint {name}")
    if settings.get("delta.columnmapping.mode", "none") != "none":
        raise TableUnsupported("the table has column mapping")
    if changes_rows and settings.get("delta.enablechangedatafeed") == "true":
        raise TableUnsupported(
            "the table has a change data feed, which needs each change of a row: it can only be appended to"
        )
    if "delta.settransactionretentionduration" in settings:
        raise TableUnsupported(
            "the table has delta.setTransactionRetentionDuration: it would forget which batches it contains"
        )
    if changes_rows and settings.get("delta.appendonly") == "true":
        raise TableUnsupported("the table is append-only (delta.appendOnly): no upserts, no complete mode")
    for field in json.loads(table.schema().to_json())["fields"]:
        _check_field(field, field["name"])


def _check_field(field: Mapping[str, Any], name: str) -> None:
    for key in field["metadata"]:
        if key == "delta.generationExpression":
            raise TableUnsupported(f"the column {name} is a generated column")
        if key.startswith("delta.identity."):
            raise TableUnsupported(f"the column {name} is an identity column")
        if key == "delta.invariants":
            raise TableUnsupported(f"the column {name} has an invariant")
    if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
        for each in field["type"]["fields"]:
            _check_field(each, f"{name}.{each['name']}")


def check_partitions(table: DeltaTable, partition_by: Sequence[str]) -> None:
    found = list(table.metadata().partition_columns)
    if found != list(partition_by):
        shown = ", ".join(found) or "nothing"
        raise SchemaMismatch(
            f"the table is partitioned by {shown}, but the pipeline by {', '.join(partition_by) or 'nothing'}"
        )


def delta_schema(schema: pa.Schema) -> Schema:
    """Raises `SchemaMismatch` for types that Delta does not have."""
    fields = []
    for each in schema:
        if odd := sorted(set(each.name) & set(_NOT_IN_NAMES)):
            raise SchemaMismatch(
                f"the column {each.name[:100]!r} has {odd[0]!r} in its name, which Delta does not allow"
            )
        try:
            fields += Schema.from_arrow(pa.schema([each])).fields
        except Exception as error:
            raise SchemaMismatch(
                f"the column {each.name[:100]} is {each.type}, which Delta tables do not support"
            ) from error
    return Schema(fields)


def missing_columns(table: DeltaTable, schema: pa.Schema) -> list[Field]:
    """Columns of the rows that the table does not have. Raises `SchemaMismatch` for those that differ."""
    wanted = {each.name: each for each in table.schema().fields}
    folded = {name.lower(): name for name in wanted}
    missing: list[Field] = []
    for field in delta_schema(schema).fields:
        if field.name in wanted:
            _check_type(field.name, _json(field)["type"], _json(wanted[field.name])["type"])
        elif field.name.lower() in folded:
            raise SchemaMismatch(
                f"the rows have the column {field.name}, but the table "
                f"{folded[field.name.lower()]}: use the table's spelling"
            )
        else:
            missing.append(field)
    for name, each in wanted.items():
        if not each.nullable and name not in schema.names:
            raise SchemaMismatch(f"the table's column {name} is NOT NULL, but the rows do not have it")
        if not each.nullable and isinstance(_json(each)["type"], dict):
            raise TableUnsupported(f"the column {name} is NOT NULL, which cannot be checked for this type")
    return missing


def never_null(table: DeltaTable) -> frozenset[str]:
    return frozenset(each.name for each in table.schema().fields if not each.nullable)


def can_add(table: DeltaTable, fields: Sequence[Field]) -> None:
    """Raises `TableUnsupported` if a new column needs a feature that the table does not have."""
    if _NTZ in (table.protocol().writer_features or ()):
        return
    for field in fields:
        if "timestamp_ntz" in field.to_json():
            raise TableUnsupported(f"the new column {field.name} is TIMESTAMP_NTZ: the table lacks the feature {_NTZ}")


def _check_type(name: str, given: Any, wanted: Any) -> None:
    """Compares types as Delta names them. Inside a column, the table must allow nulls."""
    if not isinstance(given, dict) or not isinstance(wanted, dict) or given["type"] != wanted["type"]:
        if given != wanted:
            raise SchemaMismatch(f"the column {name} is {_shown(given)} in the rows and {_shown(wanted)} in the table")
        return
    match wanted["type"]:
        case "struct":
            theirs = {each["name"]: each for each in given["fields"]}
            ours = {each["name"]: each for each in wanted["fields"]}
            if list(theirs) != list(ours):
                raise SchemaMismatch(f"the column {name} has the fields {', '.join(theirs)}, not {', '.join(ours)}")
            for key, each in ours.items():
                _check_inner(f"{name}.{key}", theirs[key]["type"], each["type"], each["nullable"])
        case "array":
            _check_inner(f"{name}[]", given["elementType"], wanted["elementType"], wanted["containsNull"])
        case "map":
            _check_type(f"{name} (keys)", given["keyType"], wanted["keyType"])
            _check_inner(f"{name} (values)", given["valueType"], wanted["valueType"], wanted["valueContainsNull"])


def _check_inner(name: str, given: Any, wanted: Any, nullable: bool) -> None:
    if not nullable:
        raise SchemaMismatch(f"{name} is NOT NULL in the table; inside a column this cannot be guaranteed")
    _check_type(name, given, wanted)


def _json(field: Field) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(field.to_json())
    return found


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
