"""gRPC's framing: calls, messages, deadlines and how a call ends."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import GrpcCallInvalid, GrpcEncodingUnknown, GrpcMessageTooLarge
from pydanube.base.errors.root import GrpcStatus
from pydanube.base.limits import GRPC_REQUEST_BYTES_MAX, GRPC_STATUS_MESSAGE_BYTES_MAX
from pydanube.wire.http2.fields import Head, head_of
from pydanube.wire.http2.frames import FRAME_BYTES
from pydanube.wire.http2.grpc import (
    HEAD,
    NOT_GRPC,
    OK,
    MessageReader,
    escaped,
    framed,
    is_call,
    only_message,
    refusal,
    timeout_of,
    trailers,
)
from wire.http2.peer import POST


def call(**fields: bytes) -> Head:
    return head_of([*POST, *((name.replace("_", "-").encode(), value) for name, value in fields.items())])


def fields_of(block: bytes) -> dict[bytes, bytes]:
    return dict(Decoder().decode(block, raw=True))  # type: ignore[arg-type]


# -- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [b"application/grpc", b"application/grpc+proto", b"application/grpc;x=y", b"Application/gRPC"]
)
def test_a_call_has_the_content_type_of_grpc(kind: bytes) -> None:
    assert is_call(call(content_type=kind))


@pytest.mark.parametrize("kind", [b"", b"application/json", b"application/grpc-web", b"xapplication/grpc"])
def test_another_content_type_is_not_a_call(kind: bytes) -> None:
    assert not is_call(call(content_type=kind))
    assert not is_call(call())
    assert fields_of(NOT_GRPC)[b":status"] == b"415"


def test_a_call_is_a_post() -> None:
    assert not is_call(call(content_type=b"application/grpc")._replace(method=b"GET"))


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        (b"1H", 3_600_000_000),
        (b"2M", 120_000_000),
        (b"3S", 3_000_000),
        (b"4m", 4_000),
        (b"5u", 5),
        (b"99999999n", 99_999),
    ],
)
def test_a_deadline_is_read_in_microseconds(text: bytes, microseconds: int) -> None:
    assert timeout_of(call(grpc_timeout=text)) == microseconds
    assert timeout_of(call()) is None


@pytest.mark.parametrize("text", [b"", b"S", b"1", b"1s", b"-1S", b"1 S", b"123456789S", b"1.5S", b"1SS"])
def test_an_invalid_deadline_is_refused(text: bytes) -> None:
    with pytest.raises(GrpcCallInvalid):
        timeout_of(call(grpc_timeout=text))


# -- messages --------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 50))
def test_messages_come_out_as_they_went_in_however_they_are_cut(messages: list[bytes], size: int) -> None:
    body = b"".join(map(framed, messages))
    reader, found = MessageReader(), []
    for at in range(0, len(body), size):
        found += reader.feed(body[at : at + size])
    reader.end()
    assert found == messages
    assert reader.missing == 0


@given(st.binary(max_size=300))
def test_a_body_of_one_message_is_read_at_once(message: bytes) -> None:
    assert only_message(framed(message)) == message


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_any_bytes_give_messages_or_a_typed_error(pieces: list[bytes]) -> None:
    reader = MessageReader(most=100)
    try:
        for piece in pieces:
            reader.feed(piece)
            assert len(reader._rest) <= 105
        reader.end()
    except (GrpcCallInvalid, GrpcEncodingUnknown, GrpcMessageTooLarge):
        pass


def test_the_missing_bytes_of_a_message_are_known_from_its_prefix() -> None:
    reader = MessageReader()
    reader.feed(framed(bytes(100))[:4])
    assert reader.missing == 0
    reader.feed(framed(bytes(100))[4:15])
    assert reader.missing == 90


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0", framed(b"abc")[:-1], framed(b"abc") + b"x", framed(b"a") * 2])
def test_a_unary_body_is_exactly_one_message(body: bytes) -> None:
    with pytest.raises(GrpcCallInvalid):
        only_message(body)


def test_a_body_that_ends_within_a_message_is_refused() -> None:
    reader = MessageReader()
    reader.feed(framed(b"abc")[:-1])
    with pytest.raises(GrpcCallInvalid):
        reader.end()


def test_compressed_messages_are_unimplemented() -> None:
    compressed = b"\x01" + framed(b"abc")[1:]
    for read in (only_message, MessageReader().feed):
        with pytest.raises(GrpcEncodingUnknown):
            read(compressed)
    assert GrpcEncodingUnknown.grpc_status == GrpcStatus.UNIMPLEMENTED
    assert fields_of(refusal(GrpcStatus.UNIMPLEMENTED))[b"grpc-accept-encoding"] == b"identity"


def test_a_message_beyond_the_bound_is_refused_by_its_prefix() -> None:
    prefix = b"\0" + (GRPC_REQUEST_BYTES_MAX + 1).to_bytes(4, "big")
    for read in (only_message, MessageReader().feed):
        with pytest.raises(GrpcMessageTooLarge):
            read(prefix)
    assert len(only_message(framed(bytes(GRPC_REQUEST_BYTES_MAX)))) == GRPC_REQUEST_BYTES_MAX


# -- how a call ends -------------------------------------------------------------------------------------------------


def test_an_answer_is_made_of_constants() -> None:
    assert fields_of(HEAD) == {b":status": b"200", b"content-type": b"application/grpc"}
    assert fields_of(OK) == {b"grpc-status": b"0"}
    assert trailers(GrpcStatus.OK) == OK


def test_a_status_has_its_message_escaped() -> None:
    assert fields_of(trailers(GrpcStatus.NOT_FOUND, "no\ntopic 100%")) == {
        b"grpc-status": b"5",
        b"grpc-message": b"no%0Atopic 100%25",
    }
    assert fields_of(refusal(GrpcStatus.INTERNAL, "x"))[b":status"] == b"200"


@given(st.text(max_size=2_000))
def test_any_message_fits_a_header_and_is_cut_between_characters(message: str) -> None:
    text = escaped(message)
    assert all(0x20 <= byte < 0x7F for byte in text)
    back = unquote_to_bytes(text)
    assert len(back) <= GRPC_STATUS_MESSAGE_BYTES_MAX
    assert message.encode("utf-8", "replace").startswith(back)
    assert back.decode()[:1] == message.encode("utf-8", "replace").decode()[:1]
    assert len(refusal(GrpcStatus.UNKNOWN, message)) < FRAME_BYTES
