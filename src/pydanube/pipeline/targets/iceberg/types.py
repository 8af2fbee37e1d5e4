"""Columns of rows and of Iceberg tables: which type becomes which, and which fit together. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from pydanube.base.errors import SchemaMismatch

_NO_ID = 0  # set later, with the schema
_PARTITION_ID_MIN = 1000  # defined by the format
_WIDER = {(IntegerType, LongType), (FloatType, DoubleType)}
_INTEGERS = frozenset({pa.int8(), pa.int16(), pa.int32()})
_PLAIN: dict[pa.DataType, IcebergType] = {
    pa.bool_(): BooleanType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.large_string(): StringType(),
    pa.binary(): BinaryType(),
    pa.large_binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us"): TimestampType(),
}


def table_type(kind: pa.DataType, column: str) -> IcebergType:
    """The type of a column of rows in a table, without ids. Raises `SchemaMismatch`."""
    if kind in _INTEGERS:
        return IntegerType()
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return TimestamptzType()
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 38:
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = table_type(kind.value_type, f"{column}.element")
        return ListType(element_id=_NO_ID, element=element, element_required=False)
    if pa.types.is_map(kind):
        key, value = table_type(kind.key_type, f"{column}.key"), table_type(kind.item_type, f"{column}.value")
        return MapType(key_id=_NO_ID, key_type=key, value_id=_NO_ID, value_type=value, value_required=False)
    if pa.types.is_struct(kind) and kind.num_fields:
        return StructType(*(_field(each.name, table_type(each.type, f"{column}.{each.name}")) for each in kind))
    raise SchemaMismatch(f"the column {column} is {kind}, which Iceberg does not have")


def _field(name: str, kind: IcebergType) -> NestedField:
    return NestedField(field_id=_NO_ID, name=name, field_type=kind, required=False)


def new_table(rows: pa.Schema, partition_by: Sequence[str]) -> tuple[Schema, PartitionSpec]:
    """A new table's schema, which fits these rows exactly."""
    fields = [NestedField(number, each.name, table_type(each.type, each.name)) for number, each in enumerate(rows, 1)]
    schema = assign_fresh_schema_ids(Schema(*fields))
    partitions = []
    for number, name in enumerate(partition_by):
        if name not in rows.names:
            raise SchemaMismatch(f"partition_by names {name}, which is not a column of the rows")
        check_partition(schema.find_field(name))
        source = schema.find_field(name).field_id
        partitions.append(PartitionField(source, _PARTITION_ID_MIN + number, IdentityTransform(), name))
    return schema, PartitionSpec(*partitions)


def check_partition(field: NestedField) -> None:
    if not field.field_type.is_primitive or isinstance(field.field_type, FloatType | DoubleType):
        raise SchemaMismatch(
            f"the column {field.name} is {shown(field.field_type)}, which a table cannot be partitioned by"
        )


def missing_columns(rows: pa.Schema, table: Schema, label: str) -> list[NestedField]:
    """The columns that the table lacks. Raises `SchemaMismatch` for those that do not fit."""
    own = {field.name: field for field in table.fields}
    folded = {name.casefold(): name for name in own}
    new = []
    for each in rows:
        kind = table_type(each.type, each.name)
        if each.name in own:
            _check_fits(kind, own[each.name].field_type, each.name, label)
        elif each.name.casefold() in folded:
            other = folded[each.name.casefold()]
            raise SchemaMismatch(
                f"{label} has a column {other}, and the rows have {each.name}: they differ only in case"
            )
        else:
            new.append(_field(each.name, kind))
    for field in table.fields:
        if field.required and field.name not in rows.names:
            raise SchemaMismatch(f"{label} requires {field.name} in every row, but the rows have no such column")
    return new


def _check_fits(rows: IcebergType, table: IcebergType, path: str, label: str) -> None:
    if isinstance(rows, StructType) and isinstance(table, StructType):
        ours, theirs = ({each.name: each for each in kind.fields} for kind in (rows, table))
        if ours.keys() == theirs.keys():
            for name, each in ours.items():
                _check_fits(each.field_type, theirs[name].field_type, f"{path}.{name}", label)
            return
    elif isinstance(rows, ListType) and isinstance(table, ListType):
        return _check_fits(rows.element_type, table.element_type, f"{path}.element", label)
    elif isinstance(rows, MapType) and isinstance(table, MapType):
        _check_fits(rows.key_type, table.key_type, f"{path}.key", label)
        return _check_fits(rows.value_type, table.value_type, f"{path}.value", label)
    elif rows == table or (type(rows), type(table)) in _WIDER or _wider_decimal(rows, table):
        return
    raise SchemaMismatch(f"the column {path} is {shown(rows)} in the rows and {shown(table)} in {label}")


def _wider_decimal(rows: IcebergType, table: IcebergType) -> bool:
    if not isinstance(rows, DecimalType) or not isinstance(table, DecimalType):
        return False
    return rows.scale == table.scale and rows.precision <= table.precision


def shown(kind: IcebergType) -> str:
    """The type as people write it, without ids."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{each.name}: {shown(each.field_type)}' for each in kind.fields)}>"
    if isinstance(kind, ListType):
        return f"list<{shown(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{shown(kind.key_type)}, {shown(kind.value_type)}>"
    return str(kind)


def file_schema(table: Schema, rows: pa.Schema) -> tuple[Schema, pa.Schema]:
    """The schema of a data file with these rows: the table's columns that the rows have, with types and ids."""
    present = Schema(*(field for field in table.fields if field.name in rows.names))
    return present, schema_to_pyarrow(present, include_field_ids=True)
