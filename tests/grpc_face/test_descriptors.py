"""The compiled descriptors are those of the `.proto` files, and mean what the public clients' descriptors mean."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from danube.proto import DanubeApi_pb2, SchemaRegistry_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from pydanube.api.grpc import messages
from pydanube.api.grpc.messages import FILES

PROTO = Path(messages.__file__).parent / "proto"
_FIELD = re.compile(r"(optional |repeated )?([\w.]+|map<string, string>) (\w+) = (\d+);")
_SCALARS = {number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()}


def declared(text: str) -> set[tuple[str, ...]]:
    """What a `.proto` file of ours says, line by line: fields, values of enums, and methods."""
    found: set[tuple[str, ...]] = set()
    scope: list[str] = []
    for line in (line.strip() for line in text.splitlines()):
        if opening := re.fullmatch(r"(message|enum|service|oneof) (\w+) \{(\})?", line):
            found.add((opening[1], ".".join([*(each for each in scope if each), opening[2]])))
            if not opening[3]:
                scope.append("" if opening[1] == "oneof" else opening[2])
        elif line == "}":
            scope.pop()
        elif field := _FIELD.fullmatch(line):
            found.add((".".join(filter(None, scope)), (field[1] or "").strip(), field[2], field[3], field[4]))
        elif value := re.fullmatch(r"(\w+) = (\d+);", line):
            found.add((".".join(scope), value[1], value[2]))
        elif method := re.fullmatch(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);", line):
            found.add((scope[0], method[1], method[2] or "", method[3], method[4] or "", method[5]))
    return {entry for entry in found if entry[0] != "oneof"}


def compiled(file: FileDescriptorProto) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()

    def short(name: str, scope: str) -> str:
        return name.removeprefix(f".{file.package}.").removeprefix(f"{scope}.")

    def add(message: DescriptorProto, scope: str) -> None:
        path = f"{scope}.{message.name}".lstrip(".")
        found.add(("message", path))
        maps = {each.name for each in message.nested_type if each.options.map_entry}
        for field in message.field:
            kind = short(field.type_name, path) if field.type_name else _SCALARS[field.type]
            label = "optional" if field.proto3_optional else "repeated" if field.label == 3 else ""
            if kind in maps:
                label, kind = "", "map<string, string>"
            found.add((path, label, kind, field.name, str(field.number)))
        for enum in message.enum_type:
            found.add(("enum", f"{path}.{enum.name}"))
            found.update((f"{path}.{enum.name}", value.name, str(value.number)) for value in enum.value)

    for message in file.message_type:
        add(message, "")
    for enum in file.enum_type:
        found.add(("enum", enum.name))
        found.update((enum.name, value.name, str(value.number)) for value in enum.value)
    for service in file.service:
        found.add(("service", service.name))
        for method in service.method:
            streams = tuple("stream " if each else "" for each in (method.client_streaming, method.server_streaming))
            kinds = short(method.input_type, ""), short(method.output_type, "")
            found.add((service.name, method.name, streams[0], kinds[0], streams[1], kinds[1]))
    return found


@pytest.mark.parametrize("file", list(FILES), ids=lambda file: str(file.name))
def test_the_descriptors_are_those_of_the_file(file: FileDescriptorProto) -> None:
    assert compiled(file) == declared((PROTO / file.name).read_text(encoding="utf-8")), "run make proto"


def test_every_file_is_compiled() -> None:
    assert {path.name for path in PROTO.glob("*.proto")} == {file.name for file in FILES}


@pytest.mark.parametrize("public", [DanubeApi_pb2, SchemaRegistry_pb2], ids=["danube", "danube_schema"])
def test_what_the_public_client_declares_is_declared_here_alike(public: object) -> None:
    theirs = FileDescriptorProto()
    public.DESCRIPTOR.CopyToProto(theirs)  # type: ignore[attr-defined]
    [ours] = [file for file in FILES if file.package == theirs.package]
    assert compiled(theirs) <= compiled(ours)
