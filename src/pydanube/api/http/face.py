"""The face of HTTP/1: recognises the protocol, has what its connections and routes share, and answers requests."""

from __future__ import annotations

import re
from asyncio import Transport
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import ClassVar, NamedTuple

from pydanube.api.http.answer import RAW, Answer
from pydanube.api.http.connection import HttpConnection
from pydanube.api.http.errors import problem
from pydanube.api.http.router import Router, media_type
from pydanube.api.listening.callers import Callers
from pydanube.api.listening.face import Sniffed
from pydanube.api.listening.turns import Turns
from pydanube.base.errors import DanubeError, HttpBusy, HttpHostRefused, HttpOriginRefused
from pydanube.base.limits import HTTP_LINE_BYTES_MAX, WAITING_REQUESTS_MAX
from pydanube.broker.door.entrance import Entrance
from pydanube.broker.door.session import Origin, Session
from pydanube.broker.door.values import Account
from pydanube.operations.operation import read
from pydanube.ports.clock import Clock
from pydanube.wire.http1 import METHODS, HttpRequest

_METHODS = tuple(f"{method} ".encode() for method in METHODS)
_REQUEST = re.compile(rb"[A-Z]{1,16} [!-~]+ HTTP/1\.[01]\r\n")
_WORD = re.compile(rb"[A-Z]{1,16} ")
_BEGINNING = re.compile(rb"[A-Z]{1,16}(?: [ -~]{0,%d}\r?)?" % HTTP_LINE_BYTES_MAX)  # of a request
_PORT = re.compile(r":[0-9]*$", re.ASCII)
SAFE = ("GET", "HEAD", "OPTIONS")


@dataclass(eq=False, slots=True)
class HttpFace:
    """The HTTP face of one broker, for all its listeners."""

    name: ClassVar[str] = "http"
    title: ClassVar[str] = "HTTP/1"
    needs_tls: ClassVar[bytes] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nThis port speaks TLS.\r\n"

    router: Router
    door: Entrance
    clock: Clock
    turns: Turns
    hosts: frozenset[str] | None  # lowercase host names under which the broker may be called; None: any
    account: Account = field(init=False)  # of everything published over HTTP, which counts as one publisher
    waiting: int = 0  # requests that wait for messages
    turn: int = 0  # counts requests with messages without a key: each goes to the next partition
    held: int = 0  # bytes of requests in memory
    serving: int = 0  # requests

    def __post_init__(self) -> None:
        self.account = self.door.account()

    # -- the listener's calls ------------------------------------------------------------------------------------------

    def sniff(self, first: bytes) -> Sniffed:
        """Recognises any method, so that an unknown one gets an HTTP error."""
        if first.startswith(_METHODS) or _REQUEST.match(first):
            return Sniffed.YES
        if _BEGINNING.fullmatch(first) or any(method.startswith(first) for method in _METHODS):
            return Sniffed.UNDECIDED
        return Sniffed.MALFORMED if _WORD.match(first) else Sniffed.NO  # another version might read text as a frame

    def connect(self, transport: Transport) -> HttpConnection:
        return HttpConnection(self, transport)

    def turn_away(self, transport: Transport, error: DanubeError) -> HttpConnection:
        return HttpConnection(self, transport, refusal=error)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def answer(self, request: HttpRequest, callers: Callers) -> Answer:
        """Answers one request of a connection, which has these callers."""
        try:
            _check_host(request, self.hosts)
            _check_origin(request)
            if not self.router.is_probe(request):
                await self.turns.begin()
            route, fields = self.router.find(request)
            if "topic" in fields:  # two segments of the path; an invalid name is refused when it is parsed
                fields["topic"] = f"/{fields.pop('namespace')}/{fields['topic']}"
            session = callers.session_of(request.headers.get("authorization"))
            asked = None if route.request is None else read(route.request, fields)
            return await route.answer(Caller(self, session, request), asked)
        except Exception as error:
            return problem(error)

    def callers(self, address: str) -> Callers:
        """The callers of a new connection from this address."""
        return Callers(self.door, Origin(self.name, address))

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Counts a request that waits for messages. Half of all requests may wait, so that others always have room."""
        if self.waiting >= WAITING_REQUESTS_MAX:
            raise HttpBusy(f"{self.waiting} requests are already waiting for messages")
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


class Caller(NamedTuple):
    """The caller of one request."""

    face: HttpFace
    session: Session
    http: HttpRequest

    @property
    def raw(self) -> bytes | None:
        """The body, if it is not JSON but bytes."""
        return self.http.body if media_type(self.http, "content-type") == RAW else None

    @property
    def wants_raw(self) -> bool:
        return media_type(self.http, "accept") == RAW

    @property
    def wants_html(self) -> bool:
        """Browsers do."""
        return "text/html" in self.http.headers.get("accept", "").lower()


def _check_host(request: HttpRequest, names: frozenset[str] | None) -> None:
    """Refuses foreign host names. A name that anyone can register may lead a browser here (DNS rebinding), and its page
    could then read and change everything.

    Addresses, and names without a dot, which only the local network resolves, cannot be registered.
    """
    host = _PORT.sub("", request.headers.get("host", "")).strip("[].").lower()
    if names is None or host in names or "." not in host:
        return
    try:
        ip_address(host)
    except ValueError:
        raise HttpHostRefused(f"this broker does not serve the host name {host[:100]}") from None


def _check_origin(request: HttpRequest) -> None:
    """Browsers say which site's page sent a request; only the broker's own pages may change something."""
    origin = request.headers.get("origin")
    if origin is None or request.method in SAFE:
        return
    if origin.partition("://")[2].lower() != request.headers.get("host", "").lower():
        raise HttpOriginRefused(f"a page of {origin[:100]}")
