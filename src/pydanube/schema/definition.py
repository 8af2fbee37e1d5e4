"""A definition as it is registered: its type, its text, and the versions of other subjects that it refers to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec

from pydanube.base.errors import SchemaInvalid, SchemaTooComplex
from pydanube.base.limits import SCHEMA_REFERENCES_MAX, SCHEMA_SOURCES_MAX
from pydanube.schema.kinds import SchemaType
from pydanube.schema.texts import read_json, write_json

PLAIN = (SchemaType.BYTES, SchemaType.STRING, SchemaType.NUMBER)  # they have no definition


class Reference(msgspec.Struct, frozen=True):
    """A version of a subject, and the name by which a definition refers to it: the full name of an Avro type, the URI
    in `$ref`, or the path that a Protobuf file imports."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Source:
    """A definition with everything that it refers to, by name."""

    type: SchemaType
    text: str
    references: Mapping[str, Source] = field(default_factory=dict)


def canonical(kind: SchemaType, text: str) -> str:
    """The text that two definitions have in common if they differ only in blanks and the order of names. A Protobuf
    definition is taken as it is."""
    if kind in PLAIN:
        return str(kind)
    return text if kind is SchemaType.PROTOBUF else write_json(read_json(text))


def fingerprint(kind: SchemaType, text: str, references: Sequence[Reference] = ()) -> str:
    """What identifies a definition among the versions of its subject."""
    if kind in PLAIN:
        return str(kind)
    found = canonical(kind, text)
    if references:
        found += write_json([[each.name, each.subject, each.version] for each in sorted_by_name(references)])
    return f"sha256:{sha256(found.encode()).hexdigest()}"


def sorted_by_name(references: Sequence[Reference]) -> list[Reference]:
    return sorted(references, key=lambda each: each.name)


def check_references(kind: SchemaType, references: Sequence[Reference]) -> None:
    if references and kind in PLAIN:
        raise SchemaInvalid(f"a schema of the type {kind} cannot have references")
    if len(references) > SCHEMA_REFERENCES_MAX:
        raise SchemaTooComplex(
            f"the definition has {len(references)} references; the maximum is {SCHEMA_REFERENCES_MAX}"
        )
    if len({each.name for each in references}) < len(references):
        raise SchemaInvalid("two references have the same name")


def sources_of(source: Source) -> list[tuple[str, Source]]:
    """All definitions that one refers to, directly and through others, each after those that it refers to itself.

    A definition knows others only by name, so one name cannot stand for two of them.
    """
    found: dict[str, Source] = {}

    def collect(inner: Source) -> None:
        for name, each in inner.references.items():
            if each.type is not source.type:
                raise SchemaInvalid(f"the reference {name} has the type {each.type}, and the definition {source.type}")
            if name in found:
                if found[name].text != each.text:
                    raise SchemaInvalid(f"two different definitions are referred to as {name}")
                continue
            if len(found) >= SCHEMA_SOURCES_MAX:
                raise SchemaTooComplex(f"the definition needs more than {SCHEMA_SOURCES_MAX} others")
            collect(each)
            if name in found:  # inside the definition that it names itself
                raise SchemaInvalid(f"two different definitions are referred to as {name}")
            found[name] = each

    collect(source)
    return list(found.items())
