"""RFC 7541: how header blocks are decoded, when they may be cached, and what our own look like."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import Http2ConnectionError, Http2StreamError
from pydanube.base.limits import (
    HTTP2_HEADER_LIST_BYTES_MAX,
    HTTP2_HEADER_MEMO_BLOCK_BYTES_MAX,
    HTTP2_HEADER_MEMO_BLOCKS_MAX,
)
from pydanube.wire.http2.fields import Head, HeadDecoder, block_of, head_of
from pydanube.wire.http2.frames import ErrorCode
from wire.http2.peer import GET, Peer, headers

START = b"\x82\x86\x84"  # GET, http, /
ADD = b"\x40\x01a\x01b"  # a: b, into the table
FIRST = b"\xbe"  # the newest entry of the table


def extra(head: Head) -> dict[bytes, bytes]:
    return dict(head.fields)


def remembered(decoder: HeadDecoder, block: bytes) -> bool:
    """Whether the block is cached: only then is the same object returned."""
    return decoder.request(block) is decoder.request(block)


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # 6.1: index 0
        b"\xbe",  # 2.3.3: beyond both tables
        b"\xff\xff\xff\xff\xff\xff\xff\x7f",  # 5.1: a number that is too large
        b"\xff",  # 5.1: a number that does not end
        b"\x00\x05ab",  # 5.2: a string that does not end
        b"\x00\x01a\x05b",
        b"\x00\x81\xff\x01b",  # 5.2: padding of eight bits
        b"\x00\x01a\x84\xff\xff\xff\xff",  # 5.2: the end-of-string symbol
        b"\x00\x01a\x81\x00",  # 5.2: padding that is not of ones
        b"\x3f\xe2\x1f",  # 6.3: a table of 4,097 bytes
        START + b"\x20",  # 4.2: a size that changes after the first field
        b"\x7e\x01x",  # 6.2.1: a name beyond the tables
        b"\x40",
        b"\x00\x7f",
    ],
)
def test_rfc7541_a_block_that_cannot_be_decoded_ends_the_connection(block: bytes) -> None:
    assert Peer().fails(headers(1, block)) == ErrorCode.COMPRESSION_ERROR


def test_rfc7541_c_4_the_requests_of_the_appendix() -> None:
    decoder = HeadDecoder()
    first = decoder.request(bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff"))
    assert (first.method, first.path, first.authority, extra(first)) == (b"GET", b"/", b"www.example.com", {})
    second = decoder.request(bytes.fromhex("828684be5886a8eb10649cbf"))
    assert (second.authority, extra(second)) == (b"www.example.com", {b"cache-control": b"no-cache"})
    third = decoder.request(bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"))
    assert (third.path, third.authority) == (b"/index.html", b"www.example.com")
    assert extra(third) == {b"custom-key": b"custom-value"}


def test_rfc7541_4_4_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = HeadDecoder()
    decoder.request(START + ADD)
    decoder.request(START + b"\x40\x01c" + b"\x7f\xa1\x1f" + b"x" * 4_128)
    with pytest.raises(Http2ConnectionError):
        decoder.request(START + FIRST)


def test_rfc7541_4_3_a_smaller_table_forgets_its_oldest() -> None:
    decoder = HeadDecoder()
    decoder.request(START + ADD + b"\x40\x01c\x01d")
    assert extra(decoder.request(b"\x3f\x10" + START + FIRST)) == {b"c": b"d"}  # 47 bytes hold one entry
    with pytest.raises(Http2ConnectionError):
        decoder.request(START + b"\xbf")


def test_rfc7541_4_2_sizes_change_twice_at_most() -> None:
    HeadDecoder().request(b"\x20\x3f\xe1\x1f" + START)
    with pytest.raises(Http2ConnectionError):
        HeadDecoder().request(b"\x20\x20\x20" + START)


def test_rfc7541_6_2_literals_with_and_without_indexing() -> None:
    decoder = HeadDecoder()
    without = START + b"\x00\x01a\x01b" + b"\x10\x01c\x01d" + b"\x0f\x10\x01e"
    assert extra(decoder.request(without)) == {b"a": b"b", b"c": b"d", b"content-type": b"e"}
    with pytest.raises(Http2ConnectionError):
        decoder.request(START + FIRST)


# -- the memo --------------------------------------------------------------------------------------------------------


def test_a_block_that_leaves_the_table_alone_is_decoded_once() -> None:
    decoder = HeadDecoder()
    assert remembered(decoder, START)
    assert remembered(decoder, START + b"\x00\x01a\x01b")
    assert remembered(decoder, START + b"\x10\x01a\x01b")


@pytest.mark.parametrize(
    "block", [START + ADD, b"\x20" + START, b"\x3f\x10" + START, START + b"\x44\x01/"[:0] + b"\x7a\x01x"]
)
def test_a_block_that_changes_the_table_is_decoded_each_time(block: bytes) -> None:
    assert not remembered(HeadDecoder(), block)


@pytest.mark.parametrize("change", [START + b"\x40\x01c\x01d", b"\x20" + START])
def test_the_memo_is_cleared_when_the_table_changes(change: bytes) -> None:
    decoder = HeadDecoder()
    decoder.request(START + ADD)
    assert extra(decoder.request(START + FIRST)) == {b"a": b"b"}
    decoder.request(change)
    if change.startswith(b"\x20"):
        with pytest.raises(Http2ConnectionError):
            decoder.request(START + FIRST)
    else:
        assert extra(decoder.request(START + FIRST)) == {b"c": b"d"}


def test_trailers_and_malformed_requests_change_the_table_too() -> None:
    decoder = HeadDecoder()
    decoder.request(START + ADD)
    decoder.request(START + FIRST)
    decoder.trailers(b"\x40\x01c\x01d")
    assert extra(decoder.request(START + FIRST)) == {b"c": b"d"}
    with pytest.raises(Http2StreamError):
        decoder.request(b"\x40\x01e\x01f")
    assert extra(decoder.request(START + FIRST)) == {b"e": b"f"}


def test_the_memo_is_bounded() -> None:
    decoder = HeadDecoder()
    for number in range(HTTP2_HEADER_MEMO_BLOCKS_MAX * 3):
        decoder.request(block_of([*GET, (b"n", b"%d" % number)]))
    assert len(decoder._memo) <= HTTP2_HEADER_MEMO_BLOCKS_MAX
    assert not remembered(
        decoder, block_of([*GET, (b"n", bytes(HTTP2_HEADER_MEMO_BLOCK_BYTES_MAX).replace(b"\0", b"x"))])
    )


names = st.sampled_from(["a", "b", "content-type", "user-agent", "x-long-name-that-takes-room"])
values = st.sampled_from(["", "1", "2", "application/grpc", "v" * 700, "w" * 1_500])
requests = st.lists(st.tuples(names, values, st.booleans()), max_size=5)


@pytest.mark.slow
@given(st.lists(st.tuples(requests, st.sampled_from([None, None, None, None, 0, 60, 4_096])), max_size=30))
@settings(max_examples=150, deadline=None)
def test_a_decoder_with_a_memo_reads_what_one_without_reads(
    history: list[tuple[list[tuple[str, str, bool]], int | None]],
) -> None:
    encoder, plain, decoder = Encoder(), Decoder(), HeadDecoder()
    for fields, size in history * 2:
        if size is not None:
            encoder.header_table_size = size
        pseudo = [(name.decode(), value.decode(), False) for name, value in GET]
        block = encoder.encode([*pseudo, *fields])  # type: ignore[arg-type]
        expected = head_of(list(plain.decode(block, raw=True)))
        assert decoder.request(block) == expected


# -- bombs -----------------------------------------------------------------------------------------------------------


def test_rfc9113_10_5_1_a_list_that_is_too_long_costs_its_stream() -> None:
    peer = Peer()
    many = [
        *GET,
        *((b"n%d" % number, bytes(100).replace(b"\0", b"x")) for number in range(HTTP2_HEADER_LIST_BYTES_MAX // 130)),
    ]
    assert len(block_of(many)) < 16_384
    assert peer.resets(1, headers(1, many)) == ErrorCode.ENHANCE_YOUR_CALM


def test_a_small_block_that_means_a_long_list_ends_the_connection() -> None:
    peer = Peer()
    peer.say(headers(1, START + b"\x40\x01a\x7f\x81\x1e" + b"x" * 3_968))
    assert peer.fails(headers(3, START + FIRST * 10_000)) == ErrorCode.ENHANCE_YOUR_CALM


def test_the_table_keeps_its_entries_and_not_the_blocks_they_came_in() -> None:
    decoder = HeadDecoder()
    for number in range(200):
        block = START + b"\x40\x03" + b"%03d" % number + b"\x01v" + b"\x00\x01p\x7f\x81\x2e" + b"x" * 6_016
        decoder.request(block)
    entries = decoder._table.dynamic_entries
    assert len(entries) > 100
    assert {type(part) for entry in entries for part in entry} == {bytes}


# -- our own blocks --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=20_000)), max_size=4))
@settings(max_examples=100, deadline=None)
def test_our_blocks_decode_to_their_fields_without_a_table(fields: list[tuple[bytes, bytes]]) -> None:
    decoder = Decoder(max_header_list_size=1 << 20)
    block = block_of([(b":status", b"200"), *fields])
    assert list(decoder.decode(block, raw=True)) == [(b":status", b"200"), *fields]
    assert not decoder.header_table.dynamic_entries
