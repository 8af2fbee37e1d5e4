"""One HTTP/1.1 connection: requests one at a time, in order, each answered before the next is examined.

Owned by the broker's loop. Its memory is bounded: while a peer is served, or does not read, little more is read from
it; a request must arrive in time; and the bodies of all connections share one bound.
"""

from __future__ import annotations

import asyncio
from asyncio import Task, Transport
from contextlib import suppress
from email.utils import formatdate
from typing import TYPE_CHECKING

from pydanube.access.rights import Action
from pydanube.api.http.answer import Answer
from pydanube.api.http.errors import problem
from pydanube.api.listening.deadlines import Deadline
from pydanube.api.listening.face import Summary
from pydanube.api.listening.peer import peer_of
from pydanube.api.listening.turns import Worker
from pydanube.base.errors import DanubeError, HttpBusy, HttpTooSlow
from pydanube.base.limits import (
    HTTP_BODIES_BYTES_MAX,
    HTTP_CHUNKS_AT_ONCE,
    HTTP_LINGER_SECONDS,
    HTTP_PIPELINED_BYTES_MAX,
    HTTP_REQUEST_SECONDS,
    HTTP_REQUESTS_MAX,
    SECOND,
)
from pydanube.wire.http1 import CONTINUE, HttpRequest, RequestReader, response

if TYPE_CHECKING:
    from pydanube.api.http.face import HttpFace


class HttpConnection(Worker):
    """`receive` gets all its bytes, from the first on. A `refusal` is the answer to everything but probes."""

    def __init__(self, face: HttpFace, transport: Transport, refusal: DanubeError | None = None) -> None:
        super().__init__(face.turns)
        self._refusal = refusal
        self.greeted = False  # whether its first request has arrived
        self.heard = False  # whether a whole request has arrived since the doorway's last check
        self._face = face
        self._callers = face.callers(peer_of(transport))
        self._transport = transport
        self._reader = RequestReader()
        self._loop = asyncio.get_running_loop()
        self._held = 0  # bytes that it has in memory: not looked at yet,
        self._served_bytes = 0  # and being served
        self._writable = True
        self._serving: Task[None] | None = None
        self._timer: Deadline | None = None  # runs while a request is being received, and at the end
        self._ended = False  # it was refused: what still arrives is ignored

    @property
    def waiting(self) -> bool:
        """Whether the client is waiting for an answer."""
        return self._serving is not None or self.lagging

    # -- the doorway's calls -------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        if not self._ended and not self._transport.is_closing():
            self.urgent = data.startswith(self._face.router.probes)
            self._reader.feed(data)
            self._go_on(len(data))
            self.greeted = self.greeted or self._reader.in_body

    def pause(self) -> None:
        """The peer does not read what it was sent, so nothing more is answered or read."""
        self._writable = False
        self._read_or_not()

    def resume(self) -> None:
        self._writable = True
        self._go_on()

    def too_slow(self, seconds: float = HTTP_REQUEST_SECONDS) -> None:
        """Refuses a request that did not arrive within `seconds`, which is less for one that has hardly begun."""
        self._timer = None
        self._refuse(HttpTooSlow(f"the request did not arrive within {seconds:g} s"))

    def ask(self) -> None:
        """Closes the idle connection, because HTTP has no ping; the client opens another one when it needs it."""
        self._transport.close()

    def stop(self, error: DanubeError) -> None:
        """Closes after everything written is sent; a request that is being served is given up."""
        self.lost()
        self._transport.close()

    def summary(self) -> Summary:
        return Summary()

    def lost(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
        self._set_timer(False)
        self._face.held -= self._held
        self._held = 0
        self._reader = RequestReader()

    # -- requests ------------------------------------------------------------------------------------------------------

    def _go_on(self, received: int = 0) -> None:
        self.work(received)
        if not self._ended:
            self._read_or_not()

    def _step(self) -> bool:
        """Serves the next request, if it has arrived and none is being served."""
        if self._serving is not None or not self._writable or self._ended or self._transport.is_closing():
            return False
        try:
            request = self._reader.next(HTTP_CHUNKS_AT_ONCE)
            self._count_held()
            if request is not None:
                self._serve(request)
            else:
                self._set_timer(self._reader.started)
                if self._reader.wants_continue():
                    self._transport.write(CONTINUE)
        except DanubeError as error:
            self._refuse(error)
        return self._reader.more

    def _serve(self, request: HttpRequest) -> None:
        self.greeted = self.heard = True
        self._set_timer(False)
        face = self._face
        if not face.router.is_probe(request):
            if self._refusal is not None:
                raise self._refusal
            if face.serving >= HTTP_REQUESTS_MAX:
                raise HttpBusy(f"{HTTP_REQUESTS_MAX} requests are already in progress")
        self._served_bytes = len(request.body)
        face.held += self._served_bytes
        face.serving += 1
        self._serving = self._loop.create_task(self._answer(request))
        self._serving.add_done_callback(self._served)

    async def _answer(self, request: HttpRequest) -> None:
        answer = await self._face.answer(request, self._callers)
        if self._transport.is_closing():
            return
        keep_alive = request.keep_alive and self._refusal is None
        self._write(answer, keep_alive=keep_alive, body=request.method != "HEAD")
        if not keep_alive:
            self._transport.close()

    def _served(self, done: Task[None]) -> None:
        self._face.serving -= 1
        self._face.held -= self._served_bytes
        self._serving = None
        self._go_on()

    def _write(self, answer: Answer, *, keep_alive: bool, body: bool = True) -> None:
        status, content, content_type, headers = answer
        headers = {"Date": formatdate(self._face.clock.wall() / SECOND, usegmt=True), **headers}
        self._transport.write(response(status, content, content_type, headers, keep_alive=keep_alive, body=body))

    def _refuse(self, error: DanubeError) -> None:
        """Answers with an error and ends the connection, because it is unknown where the next request begins. It does
        not end at once: the client may still be sending, and closing a socket with unread bytes discards the answer.
        """
        self.greeted = self._ended = True
        self._set_timer(False)
        if self._transport.is_closing():
            return
        self._write(problem(error), keep_alive=False)
        if self._transport.can_write_eof():
            with suppress(OSError):  # it is already gone, and the loop is about to report that
                self._transport.write_eof()
        self._face.held -= self._held
        self._held, self._reader = 0, RequestReader()
        self._timer = Deadline(self.turns, HTTP_LINGER_SECONDS, self._transport.close)

    # -- bounds --------------------------------------------------------------------------------------------------------

    def _count_held(self) -> None:
        held = self._reader.held
        self._face.held += held - self._held
        self._held = held
        if held > HTTP_PIPELINED_BYTES_MAX and self._reader.in_body:  # much to hold for a caller that may do nothing
            self._callers.session_of(self._reader.header("authorization")).ask(Action.SECURITY_SELF)
        if self._face.held > HTTP_BODIES_BYTES_MAX and held > HTTP_PIPELINED_BYTES_MAX:
            raise HttpBusy("other requests are being received")

    def _read_or_not(self) -> None:
        if self._transport.is_closing():
            return
        waits = self._serving is not None and self._reader.held > HTTP_PIPELINED_BYTES_MAX
        if self._writable and not waits and not self.lagging:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _set_timer(self, running: bool) -> None:
        if running and self._timer is None:
            self._timer = Deadline(self.turns, HTTP_REQUEST_SECONDS, self.too_slow)
        elif not running and self._timer is not None:
            self._timer.cancel()
            self._timer = None
