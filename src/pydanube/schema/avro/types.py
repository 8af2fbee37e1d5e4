"""The types of an Avro schema. Names are full names; a named type is one object, wherever it is used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
ABSENT: Final = object()  # the default of a field that has none


@dataclass(slots=True, eq=False)
class Decimal:
    precision: int
    scale: int


@dataclass(slots=True, eq=False)
class Primitive:
    kind: str
    decimal: Decimal | None = None  # of bytes

    @property
    def title(self) -> str:
        return self.kind


@dataclass(slots=True, eq=False)
class Array:
    items: AvroType
    title: str = "array"


@dataclass(slots=True, eq=False)
class Map:
    values: AvroType
    title: str = "map"


@dataclass(slots=True, eq=False)
class Union:
    branches: list[AvroType]

    @property
    def title(self) -> str:
        return f"union of {', '.join(each.title for each in self.branches)}"


@dataclass(slots=True, eq=False)
class Named:
    name: str
    aliases: tuple[str, ...]

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def title(self) -> str:
        return self.name

    def is_called(self, other: Named) -> bool:
        """Whether a reader with this type takes `other` of a writer for it."""
        return self.short == other.short or other.name in self.aliases


@dataclass(slots=True, eq=False)
class Fixed(Named):
    size: int
    decimal: Decimal | None = None


@dataclass(slots=True, eq=False)
class Enum(Named):
    symbols: list[str]
    default: str | None = None


@dataclass(slots=True, eq=False)
class Field:
    name: str
    aliases: tuple[str, ...]
    type: AvroType
    default: Any = ABSENT


@dataclass(slots=True, eq=False)
class Record(Named):
    fields: list[Field] = field(default_factory=list)


AvroType: TypeAlias = Primitive | Array | Map | Union | Fixed | Enum | Record
