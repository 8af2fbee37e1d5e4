"""HTTP/1.1 requests, sans-IO (RFC 9112): bytes in, whole requests out, one at a time; responses as bytes.

Ambiguous requests are refused, never interpreted: a proxy in front may have read them the other way. Every length is
checked against its limit before any of those bytes are kept. Nothing here knows about sockets or paths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from pydanube.base.errors import (
    HttpBodyTooLarge,
    HttpHeadTooLarge,
    HttpRequestInvalid,
    HttpTargetTooLong,
    HttpUnsupported,
)
from pydanube.base.limits import (
    HTTP_BODY_BYTES_MAX,
    HTTP_CHUNK_LINE_BYTES_MAX,
    HTTP_HEAD_BYTES_MAX,
    HTTP_HEADERS_MAX,
    HTTP_LINE_BYTES_MAX,
)

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE = re.compile(rf"({_TOKEN}) ([\x21-\x7e]+) HTTP/1\.([01])")
_NAME = re.compile(_TOKEN)
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")  # blanks are stripped separately: a pattern takes n³ steps
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_CHUNKED = -1  # instead of a length


class HttpRequest(NamedTuple):
    """The names in `headers` are in lower case. The values of a repeated header are joined with commas."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    keep_alive: bool


class _Head(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    minor: int  # version
    length: int  # of the body, or _CHUNKED

    @property
    def keep_alive(self) -> bool:
        options = [each.strip().lower() for each in self.headers.get("connection", "").split(",")]
        return self.minor == 1 and "close" not in options


class RequestReader:
    """Call `feed`, then `next` until it returns None. It cannot continue after an error."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer that were searched in vain
        self._head: _Head | None = None
        self._body = bytearray()  # from chunks
        self._left = 0  # missing bytes of the current chunk
        self._continue = False
        self._step: Callable[[], bool] = self._read_head
        self._request: HttpRequest | None = None
        self.more = False  # `next` has left bytes that were received

    @property
    def held(self) -> int:
        """How many bytes it keeps in memory."""
        return len(self._buffer) + len(self._body)

    @property
    def in_body(self) -> bool:
        """Whether the head of a request is complete, and its body is not."""
        return self._head is not None

    def header(self, name: str) -> str | None:
        """A header of the request whose body is being received."""
        return None if self._head is None else self._head.headers.get(name)

    @property
    def started(self) -> bool:
        """Whether a part of a request was received."""
        return self._head is not None or bool(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self, chunks: int | None = None) -> HttpRequest | None:
        """The next complete request, if there is one. Stops after this many chunks of a body, and then sets `more`."""
        left = None if chunks is None else 2 * chunks  # a chunk is a line and its data
        self.more = False
        while self._request is None and self._step():
            if left is not None:
                left -= 1
                if left <= 0 and self._request is None:
                    self.more = True
                    return None
        request, self._request = self._request, None
        return request

    def wants_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends its body. True only once per request."""
        wanted, self._continue = self._continue, False
        return wanted and not self._buffer

    # -- the head ------------------------------------------------------------------------------------------------------

    def _read_head(self) -> bool:
        if self._buffer.startswith(b"\r\n"):  # some clients send an empty line after a body
            del self._buffer[:2]
        looked = self._searched
        end = self._find(b"\r\n\r\n", HTTP_HEAD_BYTES_MAX)
        if end is None:
            self._check_beginning(looked)
            return False
        lines = self._take(end, 4).decode("latin-1").split("\r\n")
        self._head = head = _head_of(lines)
        expected = head.headers.get("expect", "").lower()
        if expected not in ("", "100-continue"):
            raise HttpUnsupported("the only supported expectation is 100-continue")
        self._continue = bool(expected) and head.minor == 1
        if head.length == _CHUNKED:
            self._step = self._read_chunk
        else:
            self._step = self._read_body
        return True

    def _check_beginning(self, looked: int) -> None:
        """Refuses an incomplete head that is already invalid or too long."""
        if _BARE_LF.search(self._buffer, looked):
            raise HttpRequestInvalid("a line ends in LF without CR")
        line = self._buffer.find(b"\r\n", 0, HTTP_LINE_BYTES_MAX + 2)
        if line < 0 and len(self._buffer) > HTTP_LINE_BYTES_MAX:
            raise HttpTargetTooLong(f"the request line has more than {HTTP_LINE_BYTES_MAX} bytes")
        if len(self._buffer) > HTTP_HEAD_BYTES_MAX:
            raise HttpHeadTooLarge(f"the headers have more than {HTTP_HEAD_BYTES_MAX} bytes")

    # -- the body ------------------------------------------------------------------------------------------------------

    def _read_body(self) -> bool:
        assert self._head is not None
        length = self._head.length
        if len(self._buffer) < length:
            return False
        return self._done(self._take(length, 0))

    def _read_chunk(self) -> bool:
        end = self._find(b"\r\n", HTTP_CHUNK_LINE_BYTES_MAX)
        if end is None:
            if len(self._buffer) > HTTP_CHUNK_LINE_BYTES_MAX:
                raise HttpRequestInvalid(f"a chunk begins with more than {HTTP_CHUNK_LINE_BYTES_MAX} bytes")
            return False
        line = self._take(end, 2)
        found = _CHUNK.fullmatch(line)
        if found is None:
            raise HttpRequestInvalid("a chunk does not begin with its size")
        size = int(found[1], 16)
        if len(self._body) + size > HTTP_BODY_BYTES_MAX:
            raise HttpBodyTooLarge(f"a body must have at most {HTTP_BODY_BYTES_MAX} bytes")
        self._left = size
        self._step = self._read_chunk_data if size else self._read_trailers
        return True

    def _read_chunk_data(self) -> bool:
        if len(self._buffer) < self._left + 2:
            return False
        data = self._take(self._left, 0)
        if self._take(2, 0) != b"\r\n":
            raise HttpRequestInvalid("a chunk is longer than its size")
        self._body += data
        self._step = self._read_chunk
        return True

    def _read_trailers(self) -> bool:
        """Trailers are checked like headers, and ignored."""
        if self._buffer.startswith(b"\r\n"):
            del self._buffer[:2]
            return self._done(bytes(self._body))
        end = self._find(b"\r\n\r\n", HTTP_HEAD_BYTES_MAX)
        if end is None:
            if len(self._buffer) > HTTP_HEAD_BYTES_MAX:
                raise HttpHeadTooLarge(f"the trailers have more than {HTTP_HEAD_BYTES_MAX} bytes")
            return False
        _fields_of(self._take(end, 4).decode("latin-1").split("\r\n"))
        return self._done(bytes(self._body))

    def _done(self, body: bytes) -> bool:
        head = self._head
        assert head is not None
        self._request = HttpRequest(head.method, head.target, head.headers, body, head.keep_alive)
        self._head, self._continue, self._step = None, False, self._read_head
        self._body.clear()
        return True

    # -- the buffer ----------------------------------------------------------------------------------------------------

    def _find(self, mark: bytes, most: int) -> int | None:
        """The position of the mark within the first `most` bytes, if it is there. No byte is searched twice."""
        at = self._buffer.find(mark, self._searched, most + len(mark))
        if at < 0:
            self._searched = max(0, min(len(self._buffer), most) - len(mark) + 1)
            return None
        self._searched = 0
        return at

    def _take(self, count: int, behind: int) -> bytes:
        """Removes and returns the first `count` bytes; `behind` more bytes are dropped."""
        taken = bytes(memoryview(self._buffer)[:count])
        del self._buffer[: count + behind]
        self._searched = 0
        return taken


def _head_of(lines: list[str]) -> _Head:
    line, *rest = lines
    if len(line) > HTTP_LINE_BYTES_MAX:
        raise HttpTargetTooLong(f"the request line has more than {HTTP_LINE_BYTES_MAX} bytes")
    found = _LINE.fullmatch(line)
    if found is None:
        raise HttpRequestInvalid("the request line is not METHOD target HTTP/1.1")
    method, target, minor = found[1], found[2], int(found[3])
    if method not in METHODS:
        raise HttpUnsupported(f"the method {method[:20]!r} is not supported")
    headers = _fields_of(rest)
    if minor == 1 and "host" not in headers:
        raise HttpRequestInvalid("the Host header is missing")
    return _Head(method, target, headers, minor, _length_of(headers, minor))


def _fields_of(lines: list[str]) -> dict[str, str]:
    """Headers by name. Those that decide where the request ends, or who it is for, must not be repeated."""
    if len(lines) > HTTP_HEADERS_MAX:
        raise HttpHeadTooLarge(f"there are {len(lines)} headers; the maximum is {HTTP_HEADERS_MAX}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            # such as a name with spaces, a folded line, or a line that ends in LF without CR
            raise HttpRequestInvalid(f"not a valid header: {line[:50]!r}")
        name, value = name.lower(), value.strip(" \t")
        if name not in headers:
            headers[name] = value
        elif name in ("host", "content-length", "transfer-encoding", "content-type"):
            raise HttpRequestInvalid(f"{name} is given twice")
        else:
            headers[name] = f"{headers[name]}, {value}"
    return headers


def _length_of(headers: Mapping[str, str], minor: int) -> int:
    length, encoding = headers.get("content-length"), headers.get("transfer-encoding")
    if encoding is not None:
        if length is not None or minor == 0:
            raise HttpRequestInvalid("transfer-encoding must not be combined with content-length or HTTP/1.0")
        if encoding.lower() != "chunked":
            raise HttpUnsupported(f"the transfer-encoding {encoding[:50]!r} is not supported")
        return _CHUNKED
    if length is None:
        return 0
    if _LENGTH.fullmatch(length) is None:
        raise HttpRequestInvalid(f"{length[:50]!r} is not a valid content-length")
    if int(length) > HTTP_BODY_BYTES_MAX:
        raise HttpBodyTooLarge(f"the body has {length} bytes; the maximum is {HTTP_BODY_BYTES_MAX}")
    return int(length)


def response(
    status: int,
    content: bytes,
    content_type: str,
    headers: Mapping[str, str] | None = None,
    *,
    keep_alive: bool,
    body: bool = True,
) -> bytes:
    """A response. Without `body` it answers HEAD: the same headers, and no content."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    if status != HTTPStatus.NO_CONTENT:
        lines += [f"Content-Type: {content_type}", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines.append(f"Connection: {'keep-alive' if keep_alive else 'close'}")
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head + content if body else head
