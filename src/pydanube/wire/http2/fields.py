"""Header blocks: decodes the client's with `hpack`, checks them as RFC 9113 (8.2, 8.3) says, and encodes ours.

A block that does not change the dynamic table means the same until something else changes it. So the request is cached:
clients send the same few blocks all the time. Sizes claimed by a block are never trusted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from pydanube.base.errors import Http2ConnectionError, Http2StreamError
from pydanube.base.limits import (
    HTTP2_HEADER_LIST_BYTES_MAX,
    HTTP2_HEADER_LIST_BYTES_READ,
    HTTP2_HEADER_MEMO_BLOCK_BYTES_MAX,
    HTTP2_HEADER_MEMO_BLOCKS_MAX,
    HTTP2_HEADER_TABLE_RESIZES_MAX,
)
from pydanube.wire.http2.frames import ErrorCode

logging.getLogger("hpack").setLevel(logging.INFO)  # its debug lines contain headers, which may be secrets

Field = tuple[bytes, bytes]

_FIELD_OVERHEAD_BYTES = 32  # what RFC 9113 (6.5.2) adds for each field
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"(?![ \t])[^\0\r\n]*(?<![ \t])")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_PATH = re.compile(rb"/[!-~]*|\*")
_RESIZE = rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f])"  # of the dynamic table, RFC 7541 (6.3)
_RESIZES_TOO_MANY = re.compile(_RESIZE + b"{%d}" % (HTTP2_HEADER_TABLE_RESIZES_MAX + 1))
_OF_CONNECTIONS = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
_STATIC = {entry: index for index, entry in enumerate(HeaderTable.STATIC_TABLE, 1)}


class Head(NamedTuple):
    """The headers of a request. Shared by all requests with the same block, so it must not be changed."""

    method: bytes
    path: bytes
    authority: bytes
    fields: Mapping[bytes, bytes]  # without pseudo-headers; the values of a repeated name are joined as HTTP does
    length: int  # content-length, or -1 if there is none


class _Table(HeaderTable):
    """A dynamic table that knows whether it has changed, and stores copies instead of views of whole blocks."""

    changed = False

    def add(self, name: bytes, value: bytes) -> None:
        self.changed = True
        super().add(bytes(name), bytes(value))


class HeadDecoder:
    """Decodes the header blocks of one connection, in the order they are received."""

    __slots__ = ("_decoder", "_memo", "_table")

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=HTTP2_HEADER_LIST_BYTES_READ)
        self._table = self._decoder.header_table = _Table()
        self._memo: dict[bytes, Head] = {}

    def request(self, block: bytes) -> Head:
        """The request of a block. A malformed one still updates the table: a stream error ends only its stream."""
        head = self._memo.get(block)
        if head is None:
            fields, lasting = self._decode(block)
            head = head_of(fields)
            if lasting and len(block) <= HTTP2_HEADER_MEMO_BLOCK_BYTES_MAX:
                if len(self._memo) >= HTTP2_HEADER_MEMO_BLOCKS_MAX:
                    self._memo.clear()
                self._memo[block] = head
        return head

    def trailers(self, block: bytes) -> None:
        """Checks the headers after a body. They are ignored, but they update the table."""
        fields, _ = self._decode(block)
        for name, value in fields:
            _check_field(name, value)

    def _decode(self, block: bytes) -> tuple[list[Field], bool]:
        """The fields, and whether the block left the table unchanged, so that the same bytes mean the same again."""
        resized = 0x20 <= (block[0] if block else 0) < 0x40
        if resized and _RESIZES_TOO_MANY.match(block):
            raise Http2ConnectionError("the header table is resized repeatedly", ErrorCode.COMPRESSION_ERROR)
        self._table.changed = resized
        try:
            fields: list[Field] = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise Http2ConnectionError("far too many headers", ErrorCode.ENHANCE_YOUR_CALM) from error
        except HPACKError as error:
            raise Http2ConnectionError("a header block cannot be read", ErrorCode.COMPRESSION_ERROR) from error
        if self._table.changed:
            self._memo.clear()  # an index may refer to another field now
        return fields, not self._table.changed


def head_of(fields: list[Field]) -> Head:
    """The request with these fields. Raises `Http2StreamError` if it is malformed (RFC 9113, 8.1.1)."""
    if sum(len(name) + len(value) + _FIELD_OVERHEAD_BYTES for name, value in fields) > HTTP2_HEADER_LIST_BYTES_MAX:
        raise Http2StreamError("too many headers", ErrorCode.ENHANCE_YOUR_CALM)
    pseudo: dict[bytes, bytes] = {}
    plain: dict[bytes, bytes] = {}
    for name, value in fields:
        if name.startswith(b":"):
            if plain or name in pseudo or name not in _PSEUDO or not _VALUE.fullmatch(value):
                raise _malformed(f"the pseudo-header {name!r} is not allowed here")
            pseudo[name] = value
            continue
        _check_field(name, value)
        if name in plain:
            value = plain[name] + (b"; " if name == b"cookie" else b", ") + value
        plain[name] = value
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    authority = _authority(pseudo, plain)
    if method == b"CONNECT":
        if not authority or len(pseudo) != 2:
            raise _malformed("CONNECT must have an authority and no other pseudo-header")
    elif (
        not method or not pseudo.get(b":scheme") or not _PATH.fullmatch(path) or (path == b"*" and method != b"OPTIONS")
    ):
        raise _malformed("the method, scheme or path is missing or not valid")
    return Head(method, path, authority, MappingProxyType(plain), _length(plain))


def _check_field(name: bytes, value: bytes) -> None:
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise _malformed(f"{name!r} is not a valid header, or its value is not valid")
    if name in _OF_CONNECTIONS or (name == b"te" and value.lower() != b"trailers"):
        raise _malformed(f"{name!r} is not allowed in HTTP/2")


def _authority(pseudo: dict[bytes, bytes], plain: dict[bytes, bytes]) -> bytes:
    host = plain.get(b"host", b"")
    authority = pseudo.get(b":authority", host)
    if b"@" in authority or (host and host.lower() != authority.lower()):
        raise _malformed("the authority names a user, or differs from the host")
    return authority


def _length(plain: dict[bytes, bytes]) -> int:
    text = plain.get(b"content-length")
    if text is None:
        return -1
    if not _LENGTH.fullmatch(text):
        raise _malformed("content-length is not a number")
    return int(text)


def _malformed(reason: str) -> Http2StreamError:
    return Http2StreamError(reason, ErrorCode.PROTOCOL_ERROR)


# -- our own headers -------------------------------------------------------------------------------------------------


def block_of(fields: Iterable[Field]) -> bytes:
    """A header block that does not use the dynamic table, so that it can be encoded once and sent on any connection."""
    parts = []
    for field in fields:
        index = _STATIC.get(field)
        parts.append(bytes([0x80 | index]) if index else b"\0" + _string(field[0]) + _string(field[1]))
    return b"".join(parts)


def _string(text: bytes) -> bytes:
    """The length, as an integer of RFC 7541 (5.1) with a 7-bit prefix, and the text."""
    size = len(text)
    if size < 0x7F:
        return bytes([size]) + text
    head = bytearray([0x7F])
    size -= 0x7F
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + text
