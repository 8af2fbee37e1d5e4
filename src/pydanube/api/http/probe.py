"""Answers GET requests of probes and scrapers, one at a time. Anything else is refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable

REQUEST_BYTES_MAX = 8 * 1024  # request line and headers; nothing here has a body
METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ")
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
Answer = tuple[int, str]  # status and text
Routes = dict[str, Callable[[], Answer]]


class Probe:
    """Sans-IO: bytes in, bytes out; `closing` once the connection should end."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._received = b""
        self.closing = False

    def receive(self, data: bytes) -> bytes:
        self._received += data
        answers = b""
        while not self.closing:
            head, found, rest = self._received.partition(b"\r\n\r\n")
            if not found:
                if len(self._received) > REQUEST_BYTES_MAX:
                    self.closing = True
                    answers += _response(400, "the request is too long\n", close=True)
                return answers
            self._received = rest
            answers += self._answer(head)
        return answers

    def _answer(self, head: bytes) -> bytes:
        line, *headers = head.decode("latin-1").split("\r\n")
        parts = line.split(" ")
        if len(head) > REQUEST_BYTES_MAX or len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            self.closing = True
            return _response(400, "this is no HTTP/1 request\n", close=True)
        method, target, version = parts
        named = {name.strip().lower(): value.strip().lower() for name, _, value in (h.partition(":") for h in headers)}
        has_body = named.get("content-length", "0") != "0" or "transfer-encoding" in named
        self.closing = version == "HTTP/1.0" or "close" in named.get("connection", "") or has_body
        if method not in ("GET", "HEAD"):
            self.closing = True
            return _response(405, "only GET is served here\n", close=True)
        route = self._routes.get(target.partition("?")[0])
        status, text = (404, "there is nothing here\n") if route is None else route()
        return _response(status, text, close=self.closing, body=method == "GET")


def _response(status: int, text: str, *, close: bool, body: bool = True) -> bytes:
    content = text.encode()
    connection = "close" if close else "keep-alive"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(content)}\r\nConnection: {connection}\r\n\r\n"
    )
    return head.encode() + (content if body else b"")
