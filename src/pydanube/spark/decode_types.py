"""Types of decoded payloads, which Arrow and Spark both have, parsed from DDL and written as DDL.

Spark's own DDL parser needs a JVM, which the process that provides a schema does not have. So this one knows the types
that payloads may have, and refuses others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydanube.base.errors import OptionInvalid
from pydanube.base.limits import MIB

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_CHARS_MAX = 1 * MIB  # it is sent to every task
DEPTH_MAX = 32  # of nested types
FIELDS_MAX = 10_000
DIGITS_MAX = 38  # of a decimal, as in Spark
TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|(\w+)|([<>(),:]))")
KNOWN = "STRING, BINARY, BOOLEAN, TINYINT to BIGINT, FLOAT, DOUBLE, DECIMAL, DATE, TIMESTAMP, ARRAY, STRUCT, MAP"
ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}


def simple_types() -> dict[str, pa.DataType]:
    """The simple types by their names in Spark."""
    import pyarrow as pa

    return {
        "string": pa.string(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }


def list_of(kind: pa.DataType) -> pa.DataType:
    """An array whose field has the same name as in Spark."""
    import pyarrow as pa

    return pa.list_(pa.field("element", kind))


def struct_of(fields: list[tuple[str, pa.DataType]], what: str) -> pa.DataType:
    """Names are compared as in Spark, without regard to case."""
    import pyarrow as pa

    seen: set[str] = set()
    for name, _ in fields:
        if name.lower() in seen:
            raise OptionInvalid(f"{what} has the field {name[:100]!r} twice; Spark ignores case")
        seen.add(name.lower())
    if not 0 < len(fields) <= FIELDS_MAX:
        raise OptionInvalid(f"{what} must have 1 to {FIELDS_MAX} fields, not {len(fields)}")
    return pa.struct(fields)


def parse_ddl(text: str) -> pa.DataType:
    """`id BIGINT, tags ARRAY<STRING>` as a struct. Raises `OptionInvalid`, which shows where it is wrong."""
    return _Parser(text).all()


def spelled(kind: pa.DataType, *, quoted: bool = True) -> str:
    """The type as Spark reads it or, without quotes, as its `simpleString`."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        fields = (
            f"{quoted_name(each.name) if quoted else each.name}:{spelled(each.type, quoted=quoted)}" for each in kind
        )
        return f"struct<{','.join(fields)}>"
    if pa.types.is_map(kind):
        return f"map<string,{spelled(kind.item_type, quoted=quoted)}>"
    if pa.types.is_list(kind):
        return f"array<{spelled(kind.value_type, quoted=quoted)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next(name for name, each in simple_types().items() if each.equals(kind))


def quoted_name(name: str) -> str:
    """A name as SQL quotes it."""
    return "`" + name.replace("`", "``") + "`"


class _Parser:
    """A recursive parser over the tokens of the text."""

    def __init__(self, text: str) -> None:
        if len(text) > SCHEMA_CHARS_MAX:
            raise OptionInvalid(f"value.schema must have at most {SCHEMA_CHARS_MAX} characters")
        self._text = text
        self._at = 0
        self._simple = simple_types()

    def all(self) -> pa.DataType:
        found = self._fields(1, end="")
        if self._text[self._at :].strip():
            raise self._wrong("a comma or the end")
        return found

    def _wrong(self, wanted: str) -> OptionInvalid:
        rest = self._text[self._at :].strip()
        where = f"not {rest[:30]!r}" if rest else "not its end"
        return OptionInvalid(f"value.schema must be DDL, as in `id BIGINT, name STRING`; expected {wanted}, {where}")

    def _next(self) -> tuple[str, int]:
        """The next token and its end; an empty one if there is none."""
        found = TOKEN.match(self._text, self._at)
        return ("", self._at) if found is None else (found[1] or found[2] or found[3], found.end())

    def _take(self, token: str) -> bool:
        found, end = self._next()
        if found.lower() != token:
            return False
        self._at = end
        return True

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise self._wrong(repr(token))

    def _fields(self, depth: int, end: str) -> pa.DataType:
        fields: list[tuple[str, pa.DataType]] = []
        while True:
            name = self._name()
            self._take(":")
            fields.append((name, self._type(depth)))
            if self._next()[0].lower() in ("not", "comment", "default"):
                raise self._wrong("a comma: a field has only a name and a type, and may be null")
            if not self._take(","):
                break
        if end:
            self._need(end)
        return struct_of(fields, "value.schema")

    def _name(self) -> str:
        found, end = self._next()
        if found.startswith("`"):
            name = found[1:-1].replace("``", "`")
        else:
            name = found if found.isidentifier() or found.isalnum() else ""
        if not name:
            raise self._wrong("the name of a field")
        self._at = end
        return name

    def _type(self, depth: int) -> pa.DataType:
        import pyarrow as pa

        if depth > DEPTH_MAX:
            raise OptionInvalid(f"value.schema must not nest types more than {DEPTH_MAX} levels deep")
        start = self._at
        found, end = self._next()
        name = ALIASES.get(found.lower(), found.lower())
        self._at = end
        if name in self._simple and name != "timestamp_ntz":
            return self._simple[name]
        if name == "decimal":
            return self._decimal()
        if name == "array":
            self._need("<")
            item = self._type(depth + 1)
            self._need(">")
            return list_of(item)
        if name == "struct":
            self._need("<")
            return self._fields(depth + 1, ">")
        if name == "map":
            self._need("<")
            if not self._take("string"):
                raise self._wrong("STRING: keys of maps are strings")
            self._need(",")
            item = self._type(depth + 1)
            self._need(">")
            return pa.map_(pa.string(), item)
        self._at = start
        raise self._wrong(f"one of the types {KNOWN}")

    def _decimal(self) -> pa.DataType:
        import pyarrow as pa

        digits, scale = 10, 0  # Spark's own defaults
        if self._take("("):
            digits = self._number()
            scale = self._number() if self._take(",") else 0
            self._need(")")
        if not 0 < digits <= DIGITS_MAX or scale > digits:
            raise OptionInvalid(
                f"value.schema: DECIMAL({digits},{scale}) must have 1 to {DIGITS_MAX} digits, including the scale"
            )
        return pa.decimal128(digits, scale)

    def _number(self) -> int:
        found, end = self._next()
        if not (found.isascii() and found.isdecimal() and len(found) <= 3):
            raise self._wrong("a number of digits")
        self._at = end
        return int(found)
