"""Reads a `.proto` file into the descriptor that the compiler of Protobuf would make of it, without custom options.

The compiler itself is a program that reads files and is loaded with a megabyte of code; it reports errors on the
standard error output only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydanube.base.errors import SchemaInvalid, SchemaTooComplex
from pydanube.schema.protobuf.tokens import END, Tokens

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import (
        DescriptorProto,
        EnumDescriptorProto,
        FieldDescriptorProto,
        FileDescriptorProto,
    )

NESTING_MAX = 32  # of messages; the compiler's own limit
_NUMBER_MAX = (1 << 29) - 1
_INT_MAX = (1 << 31) - 1
_OWN_NUMBERS = range(19_000, 20_000)  # of the library
_LABELS = {"optional": 1, "required": 2, "repeated": 3}
_TYPES = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8, "string": 9,
    "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
}  # fmt: skip
_KEYS = _TYPES.keys() - {"double", "float", "bytes"}  # of maps


class ProtoParser:
    """Reads one file. Names of types stay as they are written; the library resolves them."""

    def __init__(self, text: str, name: str) -> None:
        from google.protobuf import descriptor_pb2

        self._pb: Any = descriptor_pb2
        self._tokens = Tokens(text)
        self.file: FileDescriptorProto = descriptor_pb2.FileDescriptorProto(name=name)
        self._proto3 = False

    def parse(self) -> FileDescriptorProto:
        tokens, file = self._tokens, self.file
        self._syntax()
        while tokens.next.kind != END:
            if tokens.takes("import"):
                self._import()
            elif tokens.takes("package"):
                file.package = tokens.full_name()
                tokens.expect(";")
            elif tokens.takes("message"):
                self._message(file.message_type.add(), 1)
            elif tokens.takes("enum"):
                self._enum(file.enum_type.add())
            elif tokens.takes("service"):
                tokens.name()
                tokens.skip_block("{", "}")
            elif not self._common():
                raise tokens.wrong("expected a message, an enum or another declaration")
        return file

    def _syntax(self) -> None:
        tokens = self._tokens
        if tokens.next.text == "edition":
            raise tokens.wrong("editions are not supported; use proto2 or proto3")
        if not tokens.takes("syntax"):
            return
        tokens.expect("=")
        syntax = tokens.string()
        if syntax not in ("proto2", "proto3"):
            raise SchemaInvalid(f"unknown syntax {syntax[:50]!r}; use proto2 or proto3")
        tokens.expect(";")
        self._proto3 = syntax == "proto3"
        if self._proto3:
            self.file.syntax = syntax

    def _import(self) -> None:
        tokens = self._tokens
        if tokens.takes("public"):
            self.file.public_dependency.append(len(self.file.dependency))
        else:
            tokens.takes("weak")
        path = tokens.string()
        if path in self.file.dependency:
            raise SchemaInvalid(f"{path[:100]!r} is imported twice")
        self.file.dependency.append(path)
        tokens.expect(";")

    def _common(self) -> bool:
        """What can be at the top and in messages."""
        tokens = self._tokens
        if tokens.takes(";"):
            return True
        if tokens.takes("option"):
            self._option(None)
            return True
        if tokens.takes("extend"):
            name = tokens.full_name()
            if not name.lstrip(".").startswith("google.protobuf."):
                raise SchemaInvalid(f"extensions are not supported, and {name[:100]} is extended")
            tokens.skip_block("{", "}")
            return True
        return False

    # -- messages ------------------------------------------------------------------------------------------------------

    def _message(self, message: DescriptorProto, depth: int) -> None:
        if depth > NESTING_MAX:
            raise SchemaTooComplex(f"messages are nested more than {NESTING_MAX} levels deep")
        tokens = self._tokens
        message.name = tokens.name()
        tokens.expect("{")
        while not tokens.takes("}"):
            if tokens.next.text in ("message", "enum", "oneof", "reserved", "extensions") and self._declares(
                message, depth
            ):
                continue
            if not self._common():
                self._field(message, None)
        self._add_synthetic_oneofs(message)
        _check_numbers(message)

    def _declares(self, message: DescriptorProto, depth: int) -> bool:
        """Reads a declaration inside a message that is not a field."""
        tokens = self._tokens
        kind = tokens.take().text
        if kind == "message":
            self._message(message.nested_type.add(), depth + 1)
        elif kind == "enum":
            self._enum(message.enum_type.add())
        elif kind == "oneof":
            self._oneof(message)
        elif kind == "reserved":
            self._reserved(message, _NUMBER_MAX, 1)
        else:
            for first, last in self._ranges(_NUMBER_MAX):
                message.extension_range.add(start=first, end=last + 1)
            if tokens.next.text == "[":
                tokens.skip_block("[", "]")
            tokens.expect(";")
        return True

    def _oneof(self, message: DescriptorProto) -> None:
        tokens = self._tokens
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=tokens.name())
        tokens.expect("{")
        while not tokens.takes("}"):
            if tokens.takes("option"):
                self._option(None)
            elif not tokens.takes(";"):
                self._field(message, index)

    def _field(self, message: DescriptorProto, oneof: int | None) -> None:
        tokens = self._tokens
        if tokens.next.text == "map" and oneof is None:
            tokens.take()
            if tokens.next.text == "<":
                return self._map(message)
            raise tokens.wrong("expected '<'")
        label = _LABELS.get(tokens.next.text) if oneof is None else None
        explicit = label is not None
        if label is not None:
            word = tokens.take().text
            if word == "required" and self._proto3:
                raise tokens.wrong("proto3 has no required fields")
        elif oneof is None and not self._proto3:
            raise tokens.wrong("a field of proto2 begins with optional, required or repeated")
        kind = tokens.full_name()
        if kind == "group":
            raise tokens.wrong("groups are not supported")
        field = message.field.add(label=label or 1)
        if kind in _TYPES:
            field.type = _TYPES[kind]  # type: ignore[assignment]
        else:
            field.type_name = kind
        self._rest_of_field(field)
        if oneof is not None:
            field.oneof_index = oneof
        elif explicit and self._proto3 and label == 1:
            field.proto3_optional = True
        return None

    def _map(self, message: DescriptorProto) -> None:
        tokens = self._tokens
        tokens.expect("<")
        key = tokens.name()
        if key not in _KEYS:
            raise tokens.wrong(f"the keys of a map cannot be of the type {key}")
        tokens.expect(",")
        value = tokens.full_name()
        tokens.expect(">")
        field = message.field.add(label=3)
        self._rest_of_field(field)
        entry = message.nested_type.add(
            name="".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        )
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=_TYPES[key])
        inner = entry.field.add(name="value", number=2, label=1)
        if value in _TYPES:
            inner.type = _TYPES[value]  # type: ignore[assignment]
        else:
            inner.type_name = value
        field.type_name = entry.name
        field.type = 11  # type: ignore[assignment]

    def _rest_of_field(self, field: FieldDescriptorProto) -> None:
        tokens = self._tokens
        field.name = tokens.name()
        tokens.expect("=")
        line = tokens.next.line
        number = tokens.whole()
        if not 1 <= number <= _NUMBER_MAX or number in _OWN_NUMBERS:
            raise SchemaInvalid(f"line {line}: a field cannot have the number {number}")
        field.number = number
        if tokens.takes("["):
            while True:
                self._option(field, end="")
                if not tokens.takes(","):
                    break
            tokens.expect("]")
        tokens.expect(";")

    def _option(self, field: FieldDescriptorProto | None, end: str = ";") -> None:
        """Reads an option. Only those that change what bytes mean are kept."""
        tokens = self._tokens
        if tokens.next.text == "(":
            tokens.skip_block("(", ")")
            name = ""
        else:
            name = tokens.name()
        while tokens.takes("."):
            name = ""
            if tokens.next.text == "(":
                tokens.skip_block("(", ")")
            else:
                tokens.name()
        tokens.expect("=")
        value = self._value()
        if field is not None and name == "packed":
            field.options.packed = value == "true"
        elif field is not None and name == "default":
            if self._proto3:
                raise SchemaInvalid(f"{field.name}: proto3 has no default values")
            field.default_value = value
        elif field is not None and name == "json_name":
            field.json_name = value
        if end:
            tokens.expect(end)

    def _value(self) -> str:
        tokens = self._tokens
        if tokens.next.text == "{" and tokens.next.kind == "sign":
            tokens.skip_block("{", "}")
            return ""
        if tokens.next.kind == "text":
            return tokens.string()
        sign = "-" if tokens.takes("-") else ""
        if tokens.next.kind in ("int", "float"):
            return sign + tokens.take().text
        return sign + tokens.full_name()

    def _add_synthetic_oneofs(self, message: DescriptorProto) -> None:
        """An optional field of proto3 is alone in a oneof, behind all others."""
        taken = {each.name for each in message.oneof_decl} | {each.name for each in message.field}
        for field in message.field:
            if field.proto3_optional:
                name = f"_{field.name}"
                while name in taken:
                    name = f"X{name}"
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=name)

    # -- enums and reserved numbers ------------------------------------------------------------------------------------

    def _enum(self, enum: EnumDescriptorProto) -> None:
        tokens = self._tokens
        enum.name = tokens.name()
        tokens.expect("{")
        while not tokens.takes("}"):
            if tokens.takes(";"):
                continue
            if tokens.takes("option"):
                self._enum_option(enum)
            elif tokens.next.text == "reserved":
                tokens.take()
                self._reserved(enum, _INT_MAX, 0)
            else:
                value = enum.value.add(name=tokens.name())
                tokens.expect("=")
                value.number = _in_32_bits(tokens.whole())
                if tokens.next.text == "[":
                    tokens.skip_block("[", "]")
                tokens.expect(";")
        if not enum.value:
            raise SchemaInvalid(f"the enum {enum.name} has no values")
        numbers = [each.number for each in enum.value]
        if self._proto3 and numbers[0] != 0:
            raise SchemaInvalid(f"the first value of the enum {enum.name} must be 0 in proto3")
        if len(set(numbers)) < len(numbers) and not enum.options.allow_alias:
            raise SchemaInvalid(f"two values of the enum {enum.name} have the same number; set allow_alias to allow it")

    def _enum_option(self, enum: EnumDescriptorProto) -> None:
        if self._tokens.next.text == "allow_alias":
            self._tokens.take()
            self._tokens.expect("=")
            enum.options.allow_alias = self._value() == "true"
            self._tokens.expect(";")
        else:
            self._option(None)

    def _reserved(self, declared: Any, most: int, beyond: int) -> None:
        """Numbers and ranges, or names. `beyond` is 1 where the end of a range is the number behind its last one."""
        tokens = self._tokens
        if tokens.next.kind == "text" or tokens.next.kind == "name":
            while True:
                declared.reserved_name.append(tokens.string() if tokens.next.kind == "text" else tokens.name())
                if not tokens.takes(","):
                    break
        else:
            for first, last in self._ranges(most):
                declared.reserved_range.add(start=first, end=last + beyond)
        tokens.expect(";")

    def _ranges(self, most: int) -> list[tuple[int, int]]:
        tokens = self._tokens
        found: list[tuple[int, int]] = []
        while True:
            first = last = tokens.whole()
            if tokens.takes("to"):
                last = most if tokens.takes("max") else tokens.whole()
            if not -_INT_MAX - 1 <= first <= last <= most:
                raise SchemaInvalid(f"{first} to {last} is not a valid range of numbers")
            found.append((first, last))
            if not tokens.takes(","):
                return found


def _in_32_bits(number: int) -> int:
    if not -_INT_MAX - 1 <= number <= _INT_MAX:
        raise SchemaInvalid(f"the number {number} of an enum has more than 32 bits")
    return number


def _check_numbers(message: DescriptorProto) -> None:
    """The library accepts two fields with one number, and fields that the message itself has reserved."""
    names: dict[int, str] = {}
    ranges, reserved = [(each.start, each.end) for each in message.reserved_range], set(message.reserved_name)
    for field in message.field:
        number = field.number
        if number in names:
            raise SchemaInvalid(f"{message.name}: {names[number]} and {field.name} have the same number")
        names[number] = field.name
        if any(start <= number < end for start, end in ranges):
            raise SchemaInvalid(f"{message.name}: {field.name} has the number {number}, which is reserved")
        if field.name in reserved:
            raise SchemaInvalid(f"{message.name}: the name {field.name} is reserved")
