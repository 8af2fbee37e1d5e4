"""Protobuf: files are read as the compiler of Protobuf reads them, and compared by what the encoding allows."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from pydanube.api.grpc.messages import COMPILED, FILES
from pydanube.base.errors import SchemaInvalid
from pydanube.schema.protobuf.parsing import ProtoParser
from pydanube.schema.schema import Schema
from schema.making import message, protobuf, said


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_files_are_read_as_the_compiler_read_them(file: FileDescriptorProto) -> None:
    """The descriptors of the broker's own interface come from protoc."""
    text = (Path(COMPILED).parent / file.name).read_text(encoding="utf-8")
    ours, theirs = ProtoParser(text, file.name).parse(), FileDescriptorProto.FromString(file.SerializeToString())
    del theirs.service[:]
    theirs.ClearField("options")
    for each in theirs.message_type:
        _plain(each)
    for each in ours.message_type:
        _plain(each)
    assert [each.name for each in ours.message_type] == [each.name for each in theirs.message_type]
    assert ours.message_type == theirs.message_type
    assert ours.enum_type == theirs.enum_type


def _plain(message: object) -> None:
    """Without what only the compiler adds: resolved names of types, and names in JSON."""
    for field in message.field:  # type: ignore[attr-defined]
        field.ClearField("json_name")
        if field.type_name:
            field.type_name = field.type_name.rpartition(".")[2]
            field.ClearField("type")
    for each in message.nested_type:  # type: ignore[attr-defined]
        _plain(each)


def test_everything_that_a_file_can_have() -> None:
    schema = protobuf(
        """
        /* a comment */ syntax = "proto2";  // another
        package shop.v1;
        import public "google/protobuf/timestamp.proto";
        option java_package = "com" ".shop";
        option (custom).deep = { a: 1 };
        message Order {
          option deprecated = true;
          required int64 id = 1 [deprecated = true, (mine) = "x"];
          optional string note = 2 [default = "a\\n\\x41\\101", json_name = "Note"];
          repeated int32 counts = 3 [packed = true];
          optional .google.protobuf.Timestamp at = 0x4;
          map<string, Line> lines = 5;
          oneof paid { string card = 6; Bill bill = 7; }
          message Line { optional double price = 1; enum Unit { PIECE = 0; KILO = -1; } optional Unit unit = 2; }
          message Bill {}
          reserved 10, 12 to 15, 20 to max;
          reserved "old", 'older';
          extensions 16 to 18 [declaration = {number: 16}];
          ;
        }
        enum State { option allow_alias = true; NEW = 0; FRESH = 0 [deprecated = true];
          reserved 5 to max, -2; reserved X; }
        extend google.protobuf.FieldOptions { optional string mine = 50000; }
        service Orders { rpc Get(Order) returns (Order) { option x = { get: "/{id}" }; } }
        """
    )
    assert schema.faults([b"\x08\x01"]) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message A { int32 a = 1; }", "a field of proto2 begins with optional, required or repeated"),
        ('syntax = "proto3"; message A { required int32 a = 1; }', "proto3 has no required fields"),
        ('syntax = "proto4";', "unknown syntax 'proto4'"),
        ('edition = "2023";', "editions are not supported"),
        ('syntax = "proto3"; message A { int32 a = 1; int32 b = 1; }', "a and b have the same number"),
        ('syntax = "proto3"; message A { reserved 1; int32 a = 1; }', "the number 1, which is reserved"),
        ('syntax = "proto3"; message A { reserved "a"; int32 a = 1; }', "the name a is reserved"),
        ('syntax = "proto3"; message A { int32 a = 19000; }', "cannot have the number 19000"),
        ('syntax = "proto3"; message A { int32 a = 0; }', "cannot have the number 0"),
        ('syntax = "proto3"; message A { B b = 1; }', "the definition cannot be built"),
        ('syntax = "proto3"; import "other.proto"; message A { }', "the definition cannot be built"),
        ('syntax = "proto3"; enum E { A = 1; }', "must be 0 in proto3"),
        ('syntax = "proto3"; enum E { A = 0; B = 0; }', "set allow_alias"),
        ('syntax = "proto3"; enum E { }', "has no values"),
        ('syntax = "proto3"; message A { map<double, int32> a = 1; }', "the keys of a map"),
        ('syntax = "proto3"; message A { int32 a = 1 }', "line 1: expected ';', got '}'"),
        ('syntax = "proto3";\nmessage A {', "line 2: expected a name"),
        ('syntax = "proto3"; message A { int32 a = 08; }', "08 is not a valid number"),
        ("message A { optional group B = 1 { } }", "groups are not supported"),
        ('syntax = "proto3"; extend A { int32 a = 1; }', "extensions are not supported"),
        ('syntax = "proto3"; package a;', "has no message"),
        ("message A { # }", "is not part of a Protobuf definition"),
        ('syntax = "proto3"; message A { int32 a = 1 [default = 2]; }', "proto3 has no default values"),
    ],
)
def test_what_is_wrong_is_said(text: str, reason: str) -> None:
    with pytest.raises(SchemaInvalid) as refused:
        protobuf(text)
    assert reason in str(refused.value)


COMPATIBLE = [
    ("a new field", "int32 a = 1; string b = 2;", "int32 a = 1;"),
    ("a field that was removed", "", "int32 a = 1;"),
    ("another name", "int32 b = 1;", "int32 a = 1;"),
    ("whole numbers of another size", "int64 a = 1; bool b = 2;", "int32 a = 1; uint32 b = 2;"),
    ("an enum as a number", "int32 a = 1; enum E { X = 0; }", "E a = 1; enum E { X = 0; }"),
    ("text as bytes", "bytes a = 1;", "string a = 1;"),
    ("fixed numbers", "sfixed32 a = 1;", "fixed32 a = 1;"),
    ("one value as several", "repeated string a = 1;", "string a = 1;"),
    ("one field moves into a oneof", "oneof c { string a = 1; string b = 2; }", "string a = 1;"),
    ("a oneof gets a field", "oneof c { string a = 1; string b = 2; }", "oneof c { string a = 1; }"),
    ("a oneof is dissolved", "string a = 1; string b = 2;", "oneof c { string a = 1; string b = 2; }"),
    ("an optional field", "optional int32 a = 1;", "int32 a = 1;"),
    ("an enum without a value, which is open", "E a = 1; enum E { X = 0; }", "E a = 1; enum E { X = 0; Y = 1; }"),
    ("a message inside itself", "Order a = 1; int64 b = 2;", "Order a = 1; int32 b = 2;"),
    (
        "another message with the same numbers",
        "B a = 1; message B { int32 y = 1; }",
        "A a = 1; message A { int32 x = 1; }",
    ),
]


@pytest.mark.parametrize(("reader", "writer"), [each[1:] for each in COMPATIBLE], ids=[each[0] for each in COMPATIBLE])
def test_what_the_encoding_allows_has_no_breaks(reader: str, writer: str) -> None:
    assert said(message(reader).breaks_reading(message(writer))) == []


def test_each_place_that_breaks_is_named() -> None:
    def breaks(reader: str, writer: str, syntax: str = "proto3") -> list[str]:
        return said(message(reader, syntax).breaks_reading(message(writer, syntax)))

    assert breaks("string a = 1;", "int32 a = 1;") == ["Order.a: the reader expects string, and int32 was written"]
    assert breaks("sint32 a = 1;", "int32 a = 1;") == ["Order.a: the reader expects sint32, and int32 was written"]
    assert breaks("string a = 1;", "bytes a = 1;") == ["Order.a: the reader expects string, and bytes was written"]
    assert breaks("fixed64 a = 1;", "fixed32 a = 1;") == [
        "Order.a: the reader expects fixed64, and fixed32 was written"
    ]
    assert breaks("string a = 1;", "repeated string a = 1;") == [
        "Order.a: the reader expects one value, and several may have been written"
    ]
    assert breaks("oneof c { string a = 1; string b = 2; }", "string a = 1; string b = 2;") == [
        "Order.c: the reader keeps only one of a, b, and several may have been written"
    ]
    assert breaks("oneof c { string a = 1; }", "oneof c { string a = 1; string b = 2; }") == [
        "Order.c: the reader's oneof lacks b, number 2"
    ]
    assert breaks("repeated A a = 1; message A { string x = 1; }", "repeated A a = 1; message A { int32 x = 1; }") == [
        "Order.a.x: the reader expects string, and int32 was written"
    ]
    assert breaks("map<string, string> a = 1;", "map<string, int32> a = 1;") == [
        "Order.a.value: the reader expects string, and int32 was written"
    ]
    assert breaks("Order a = 1; string b = 2;", "Order a = 1; int32 b = 2;") == [
        "Order.b: the reader expects string, and int32 was written"
    ]
    assert breaks("required int32 a = 1;", "optional int32 a = 1;", "proto2") == [
        "Order.a: the field is required, and was not always written"
    ]
    assert breaks("optional E a = 1; enum E { X = 0; }", "optional E a = 1; enum E { X = 0; Y = 1; }", "proto2") == [
        "Order.a: the reader's enum lacks Y, number 1"
    ]


def test_a_message_that_is_gone_breaks_unless_it_was_only_renamed_as_the_first() -> None:
    two = protobuf('syntax = "proto3"; message A { int32 x = 1; } message B { int32 y = 1; }')
    one = protobuf('syntax = "proto3"; message A { int32 x = 1; }')
    assert said(one.breaks_reading(two)) == ["B: the reader does not have the message"]
    renamed = protobuf('syntax = "proto3"; message C { string x = 1; }')
    assert said(renamed.breaks_reading(one)) == ["C.x: the reader expects string, and int32 was written"]


def test_reserved_numbers_and_names_stay_reserved() -> None:
    old = message('reserved 2 to 4, 9; reserved "gone"; int32 a = 1;')

    def broken(body: str) -> list[str]:
        return said(message(body).breaks_replacing(old))

    assert broken('reserved 2, 3 to 4, 9 to 12; reserved "gone"; int32 a = 1;') == []
    assert broken('reserved 4, 9; reserved "gone"; int32 b = 2; int32 c = 3;') == [
        "Order.b: the number 2 was reserved",
        "Order.c: the number 3 was reserved",
    ]
    assert broken("reserved 2 to 4; int32 gone = 5;") == [
        "Order: the number 9 is no longer reserved",
        "Order.gone: the name was reserved",
    ]


def test_imports_are_other_definitions() -> None:
    line = 'syntax = "proto3"; package shop; message Line { string sku = 1; }'
    text = 'syntax = "proto3"; import "line.proto"; message Order { repeated shop.Line lines = 1; }'
    schema = protobuf(text, {"line.proto": line})
    assert schema.faults([b"\x0a\x03\x0a\x01x"]) == []
    changed = protobuf(text, {"line.proto": line.replace("string", "int32")})
    assert said(changed.breaks_reading(schema)) == ["Order.lines.sku: the reader expects int32, and string was written"]


@pytest.mark.parametrize(
    ("schema", "payload", "place", "reason"),
    [
        (message("int32 a = 1;"), b"\x08", "a", "the payload ends too early"),
        (message("int32 a = 1;"), b"\x08" + b"\xff" * 11, "a", "a number has more than 10 bytes"),
        (message("A a = 1; message A { string s = 2; }"), b"\x0a\x02\x12\x05", "a.s", "the payload ends too early"),
        (message("string s = 1;"), b"\x0a\x01\xff", "s", "the string is not UTF-8"),
        (message("required int32 a = 1;", "proto2"), b"", "a", "the field is required, and missing"),
        (message("int32 a = 1;"), b"\x0f", "a", "unknown wire type 7"),
        (message(""), b"\x00", "", "a field has the number 0"),
    ],
)
def test_the_place_of_a_fault_is_named(schema: Schema, payload: bytes, place: str, reason: str) -> None:
    [fault] = schema.faults([payload])
    assert (fault.payload, fault.path, fault.reason) == (0, place, reason)


def test_descriptors_of_kafka_clients_are_definitions_too() -> None:
    from base64 import b64encode

    file = ProtoParser('syntax = "proto3"; message A { int32 x = 1; }', "a.proto").parse()
    schema = protobuf(b64encode(file.SerializeToString()).decode())
    assert schema.faults([b"\x08\x01"]) == []
