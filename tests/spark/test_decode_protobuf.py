"""Protobuf payloads as typed columns: types, presence, and payloads that are wrong or hostile."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import OptionInvalid
from pydanube.spark.decode_protobuf import ProtobufDecoder
from pydanube.spark.decode_types import spelled

pa = pytest.importorskip("pyarrow")

Descriptor = descriptor_pb2.DescriptorProto
PLAIN = {
    "flag": Field.TYPE_BOOL,
    "i32": Field.TYPE_INT32,
    "s64": Field.TYPE_SINT64,
    "u32": Field.TYPE_UINT32,
    "u64": Field.TYPE_FIXED64,
    "f": Field.TYPE_FLOAT,
    "d": Field.TYPE_DOUBLE,
    "text": Field.TYPE_STRING,
    "data": Field.TYPE_BYTES,
}


def add(message: Any, name: str, kind: int, **more: Any) -> None:
    message.field.add(name=name, number=len(message.field) + 1, type=kind, **{"label": Field.LABEL_OPTIONAL} | more)


def shop(syntax: str = "proto3") -> descriptor_pb2.FileDescriptorSet:
    """A message of everything, and one that contains itself."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax=syntax)
    file.dependency.append("google/protobuf/timestamp.proto")
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    item = file.message_type.add(name="Item")
    add(item, "name", Field.TYPE_STRING)
    add(item, "count", Field.TYPE_INT32)
    order = file.message_type.add(name="Order")
    for name, kind in PLAIN.items():
        add(order, name, kind)
    add(order, "state", Field.TYPE_ENUM, type_name=".shop.State")
    add(order, "at", Field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    add(order, "first", Field.TYPE_MESSAGE, type_name=".shop.Item")
    add(order, "items", Field.TYPE_MESSAGE, type_name=".shop.Item", label=Field.LABEL_REPEATED)
    add(order, "numbers", Field.TYPE_INT64, label=Field.LABEL_REPEATED)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    add(entry, "key", Field.TYPE_STRING)
    add(entry, "value", Field.TYPE_MESSAGE, type_name=".shop.Item")
    add(order, "counts", Field.TYPE_MESSAGE, type_name=".shop.Order.CountsEntry", label=Field.LABEL_REPEATED)
    order.oneof_decl.add(name="_maybe")
    if syntax == "proto3":
        add(order, "maybe", Field.TYPE_INT32, oneof_index=0, proto3_optional=True)
    else:
        add(order, "maybe", Field.TYPE_INT32, oneof_index=0)
    tree = file.message_type.add(name="Tree")
    add(tree, "branches", Field.TYPE_MESSAGE, type_name=".shop.Tree", label=Field.LABEL_REPEATED)
    needs = file.message_type.add(name="Plain")
    add(needs, "text", Field.TYPE_STRING, label=Field.LABEL_OPTIONAL if syntax == "proto3" else Field.LABEL_REQUIRED)
    odd = file.message_type.add(name="Odd")
    entry = odd.nested_type.add(name="ByNumberEntry")
    entry.options.map_entry = True
    add(entry, "key", Field.TYPE_INT32)
    add(entry, "value", Field.TYPE_STRING)
    add(odd, "by_number", Field.TYPE_MESSAGE, type_name=".shop.Odd.ByNumberEntry", label=Field.LABEL_REPEATED)
    file.message_type.add(name="Nothing")
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    return descriptor_pb2.FileDescriptorSet(file=[file, times])


def text_of(files: descriptor_pb2.FileDescriptorSet) -> str:
    return b64encode(files.SerializeToString()).decode()


def message(name: str = "shop.Order", syntax: str = "proto3") -> Any:
    pool = DescriptorPool()
    for file in reversed(shop(syntax).file):
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


def decoded(*payloads: bytes | None, name: str = "shop.Order", syntax: str = "proto3") -> tuple[list[Any], list[Any]]:
    decoder = ProtobufDecoder(text_of(shop(syntax)), name)
    found = decoder.decode(pa.array(payloads, pa.binary()))
    found.values.validate(full=True)
    assert found.values.type.equals(decoder.kind)
    errors = [None] * len(payloads) if found.errors is None else found.errors.to_pylist()
    return found.values.to_pylist(), errors


def full() -> Any:
    order = message()(
        flag=True, i32=-1, s64=-(2**63), u32=2**32 - 1, u64=2**64 - 1, f=0.5, d=0.1, text="ä", data=b"\xff"
    )
    order.state, order.maybe = 1, 0
    order.at.seconds, order.at.nanos = 1_769_860_800, 123_456_789
    order.first.name = "a"
    order.items.add(name="b", count=2)
    order.items.add()
    order.numbers.extend([1, 2, 3])
    order.counts["k"].count = 5
    return order


def test_every_type() -> None:
    decoder = ProtobufDecoder(text_of(shop()), "shop.Order")
    assert spelled(decoder.kind, quoted=False) == (
        "struct<flag:boolean,i32:int,s64:bigint,u32:bigint,u64:decimal(20,0),f:float,d:double,text:string,data:binary,"
        "state:string,at:timestamp,first:struct<name:string,count:int>,items:array<struct<name:string,count:int>>,"
        "numbers:array<bigint>,counts:map<string,struct<name:string,count:int>>,maybe:int>"
    )
    [found], errors = decoded(full().SerializeToString())
    assert errors == [None]
    assert found == {
        "flag": True,
        "i32": -1,
        "s64": -(2**63),
        "u32": 2**32 - 1,
        "u64": Decimal(2**64 - 1),
        "f": 0.5,
        "d": 0.1,
        "text": "ä",
        "data": b"\xff",
        "state": "PAID",
        "at": datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC),
        "first": {"name": "a", "count": 0},
        "items": [{"name": "b", "count": 2}, {"name": "", "count": 0}],
        "numbers": [1, 2, 3],
        "counts": [("k", {"name": "", "count": 5})],
        "maybe": 0,
    }


def test_an_empty_payload_is_a_message_of_defaults_and_none_is_null() -> None:
    values, errors = decoded(b"", None, full().SerializeToString())
    assert errors == [None] * 3
    assert values[1] is None
    assert values[2]["text"] == "ä"
    nulls = {"at", "first", "maybe"}
    assert {name for name, value in values[0].items() if value is None} == nulls
    assert (values[0]["state"], values[0]["text"], values[0]["items"], values[0]["counts"]) == ("NEW", "", [], [])


def test_an_enum_without_a_name_is_its_number() -> None:
    order = message()(i32=1)
    order.state = 7
    [found], _ = decoded(order.SerializeToString())
    assert found["state"] == "7"


def test_fields_of_a_newer_descriptor_are_ignored() -> None:
    [found], errors = decoded(b"\xfa\x7f\x03abc" + b"\x10\x05")
    assert (found["i32"], errors) == (5, [None])


def late() -> bytes:
    order = message()()
    order.at.seconds = 2**62
    return bytes(order.SerializeToString())


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (full().SerializeToString()[:-1], "it ends too early"),
        (b"\x42\xff\xff\xff\xff\x0f", "it ends too early"),
        (b"\x42\x01\xff", "or contains something else"),
        (b"\xff" * 20, "not a message"),
        (b"\x00", "not a message"),
        (b"\xfb\x7f" * 10_000, "not a message"),
        (late(), "not in the years 1 to 9999"),
    ],
)
def test_a_row_that_does_not_fit_has_a_reason_and_costs_no_other(payload: bytes, said: str) -> None:
    good = message()(i32=5).SerializeToString()
    values, errors = decoded(good, payload, good)
    assert [each and each["i32"] for each in values] == [5, None, 5]
    assert errors[0] is errors[2] is None
    assert said in errors[1]
    assert len(errors[1]) <= 200


def test_too_many_items_do_not_fit() -> None:
    values, errors = decoded(b"", b"\x6a\x00" * 4_194_305)
    assert [each is None for each in values] == [False, True]
    assert "more than 4194304 items" in errors[1]


def test_proto2() -> None:
    values, errors = decoded(b"\x0a\x01a", b"", b"\x0a\x01\xff", name="shop.Plain", syntax="proto2")
    assert values == [{"text": "a"}, None, None]
    assert errors[:2] == [None, "a required field is missing"]
    assert errors[2] is not None
    [found], _ = decoded(b"", syntax="proto2")
    assert found["text"] is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shop.Tree", "shop.Tree contains itself"),
        ("shop.Nothing", "must have 1 to 10000 fields"),
        ("shop.Odd", "keys of shop.Odd.by_number are not strings"),
        ("Order", "'Order' does not exist; value.schema has google.protobuf.Timestamp, shop.Item"),
        ("", "'' does not exist"),
    ],
)
def test_a_message_that_cannot_be_used_is_refused(name: str, said: str) -> None:
    with pytest.raises(OptionInvalid) as raised:
        ProtobufDecoder(text_of(shop()), name)
    assert said in str(raised.value)


@pytest.mark.parametrize("schema", ["%%%", "", "AAAA", b64encode(b"\xff" * 30).decode()])
def test_a_descriptor_that_is_none_is_refused(schema: str) -> None:
    with pytest.raises(OptionInvalid, match="FileDescriptorSet in base64"):
        ProtobufDecoder(schema, "shop.Order")


def test_imports_are_needed() -> None:
    alone = descriptor_pb2.FileDescriptorSet(file=[shop().file[0]])
    with pytest.raises(OptionInvalid, match="lacks a file that it imports"):
        ProtobufDecoder(text_of(alone), "shop.Order")


@settings(max_examples=200, deadline=None)
@given(payload=st.binary(max_size=40))
def test_any_bytes_are_a_row_or_an_error(payload: bytes) -> None:
    values, errors = decoded(payload)
    assert (values[0] is None) == (errors[0] is not None)
