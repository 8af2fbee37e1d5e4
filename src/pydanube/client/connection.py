"""One connection to a broker: hello, numbered requests, channels, keepalive. It ends once and is never reopened.

It knows nothing of batches or offsets: it passes frames to their channels, and answers to their callers.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future, Task, TimerHandle
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar, cast

from pydanube import __version__
from pydanube.base.errors import BrokerProtocolError, ClientClosed, ConnectionLost, DanubeError, NodeBusy, ProtocolError
from pydanube.base.limits import CLIENT_REQUESTS_AT_ONCE, CLIENT_REQUESTS_MAX
from pydanube.base.names import full_name
from pydanube.client.errors import error_of
from pydanube.client.transport import Address, Dialer, Link
from pydanube.operations import operation
from pydanube.operations.operation import Answer
from pydanube.wire.commands import (
    Acked,
    AckTimeout,
    Batches,
    Closed,
    Command,
    Deliver,
    Error,
    Hello,
    Limit,
    Ping,
    Pong,
    Published,
    Recall,
    Reply,
    RequestFrame,
    Reset,
    Welcome,
    decode,
)
from pydanube.wire.frames import PREFACE, FrameReader, Side

HELLO_SECONDS = 5.0
GONE_SECONDS = 1.0  # to end TLS; then the connection is aborted
A = TypeVar("A", bound=Answer)


class Channel:
    """A producer's or consumer's end of a connection. It ignores notices that only other kinds get."""

    def published(self, answer: Published) -> None: ...

    def acked(self, answer: Acked) -> None: ...

    def refused(self, request: int, error: DanubeError) -> None: ...

    def delivered(self, delivery: Deliver) -> None: ...

    def reset(self, generation: int) -> None: ...

    def recalled(self, recall: Recall) -> None: ...

    def message_limit_changed(self, message_bytes_max: int | None) -> None: ...

    def ack_timeout_changed(self, ack_timeout: int | None) -> None: ...

    def ended(self, error: DanubeError) -> None:
        """The broker closed the channel."""

    def broken(self, error: DanubeError) -> None:
        """The connection is gone."""


class Connection:
    """Connects with `open`. When it ends, it notifies its channels and then calls `on_lost` once."""

    def __init__(
        self, loop: AbstractEventLoop, on_lost: Callable[[Connection, DanubeError], None], address: Address
    ) -> None:
        self.loop = loop
        self.address = address
        self.welcome: Welcome | None = None
        self.error: DanubeError | None = None  # why it ended
        self._on_lost = on_lost
        self._link: Link | None = None
        self._reader = FrameReader(Side.CLIENT)
        self._greeted: Future[None] = loop.create_future()
        self._socket_closed: Future[None] = loop.create_future()
        self._requests: dict[int, Future[Reply | Batches]] = {}
        self._turns = asyncio.Semaphore(CLIENT_REQUESTS_AT_ONCE)
        self._channels: dict[int, Channel] = {}
        self._unawaited: dict[Task[None], None] = {}
        self._last_request = 0
        self._last_channel = 0
        self._received = True  # anything since the last keepalive check
        self._keepalive: TimerHandle | None = None

    async def open(self, dialer: Dialer, token: str | None = None) -> None:
        """Raises `ConnectionLost`, `TlsFailed` or the broker's own refusal."""
        address = self.address
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                self._link = await dialer.dial(address, self)
                self._link.write([PREFACE, *Hello(f"pydanube {__version__}", token=token or "").encode()])
                await self._greeted
        except DanubeError as error:
            raise self._give_up(error) from None
        except TimeoutError:
            raise self._give_up(ConnectionLost(f"{address} did not answer within {HELLO_SECONDS:g} seconds")) from None
        except OSError as error:
            raise self._give_up(ConnectionLost(f"{address}: {error}")) from error
        except asyncio.CancelledError:
            self._give_up(ConnectionLost("cancelled"))
            raise

    def _give_up(self, error: DanubeError) -> DanubeError:
        self.end(error)
        if self._greeted.done() and not self._greeted.cancelled():
            self._greeted.exception()  # it is raised here
        return error

    # -- requests and channels -----------------------------------------------------------------------------------------

    async def request(self, request: operation.Request[A]) -> A:
        """Returns the broker's answer. Raises the error that it answered with, or the one that ended the connection."""
        answer = await self.request_any(request)
        if isinstance(answer, Batches):
            raise BrokerProtocolError(f"the answer to {request.operation} has batches, which were not asked for")
        return answer

    async def request_any(self, request: operation.Request[A]) -> A | Batches:
        """The same for requests that may be answered with batches."""
        fields = request.to_fields()
        if "topic" in fields:
            fields["topic"] = full_name(fields["topic"])
        reply = await self._answer(request.operation, fields)
        return reply if isinstance(reply, Batches) else cast(A, _read(request, reply))

    async def _answer(self, verb: str, fields: dict[str, object]) -> Reply | Batches:
        if self.error is not None:
            raise type(self.error)(*self.error.args)
        if len(self._requests) >= CLIENT_REQUESTS_MAX:
            raise NodeBusy(f"{CLIENT_REQUESTS_MAX} requests are still unanswered")
        number = self.next_request()
        answer: Future[Reply | Batches] = self.loop.create_future()
        self._requests[number] = answer
        try:
            async with self._turns:
                self.write(RequestFrame(number, verb, fields).encode())
                return await answer
        finally:
            self._requests.pop(number, None)

    def request_nowait(self, request: operation.Request[A]) -> None:
        """Sends a request without waiting for its answer. It counts toward the limit of requests at once."""
        task = self.loop.create_task(self._request_quietly(request))
        self._unawaited[task] = None
        task.add_done_callback(self._unawaited.pop)

    async def _request_quietly(self, request: operation.Request[A]) -> None:
        with suppress(DanubeError):  # refused, or the connection and all its channels are gone
            await self.request(request)

    def next_request(self) -> int:
        self._last_request += 1
        return self._last_request

    def add_channel(self, channel: Channel) -> int:
        """Registers a channel and returns its number, which is used only once per connection."""
        self._last_channel += 1
        self._channels[self._last_channel] = channel
        return self._last_channel

    def remove_channel(self, number: int) -> None:
        self._channels.pop(number, None)

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        if self.error is None and self._link is not None:
            self._link.write(parts)

    # -- receiving -----------------------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        self._received = True
        try:
            for frame in self._reader.feed(data):
                self._dispatch(decode(frame))
        except DanubeError as error:  # not the protocol, or a damaged batch: nothing after it can be trusted
            self.end(error)

    def _dispatch(self, command: Command) -> None:
        match command:
            case Published():
                if (channel := self._channels.get(command.channel)) is not None:
                    channel.published(command)
            case Deliver():
                if (channel := self._channels.get(command.channel)) is not None:
                    channel.delivered(command)
            case Acked():
                if (channel := self._channels.get(command.channel)) is not None:
                    channel.acked(command)
            case Reply() | Batches():
                if (answer := self._requests.get(command.request)) is not None and not answer.done():
                    answer.set_result(command)
            case Error():
                self._on_error(command)
            case Reset():
                if (channel := self._channels.get(command.channel)) is not None:
                    channel.reset(command.generation)
            case Recall():
                if (channel := self._channels.get(command.channel)) is not None:
                    channel.recalled(command)
            case Limit():
                if (channel := self._channels.get(command.channel)) is not None:
                    channel.message_limit_changed(command.message_bytes_max)
            case AckTimeout():
                if (channel := self._channels.get(command.channel)) is not None:
                    channel.ack_timeout_changed(command.microseconds)
            case Closed():
                self._closed(command)
            case Ping():
                self.write(Pong(command.request).encode())
            case Welcome():
                self._welcomed(command)

    def _welcomed(self, welcome: Welcome) -> None:
        self.welcome = welcome
        if not self._greeted.done():
            self._greeted.set_result(None)
        self._keepalive = self.loop.call_later(welcome.keepalive_seconds / 2, self._keep_alive, 0)

    def _on_error(self, refusal: Error) -> None:
        error = error_of(refusal.code, refusal.message)
        answer = self._requests.get(refusal.request)
        channel = self._channels.get(refusal.channel)
        if answer is not None:
            if not answer.done():
                answer.set_exception(error)
        elif channel is not None:
            channel.refused(refusal.request, error)
        elif not refusal.request and not refusal.channel:
            self.end(error)

    def _closed(self, closed: Closed) -> None:
        error = error_of(closed.code, closed.message)
        if not closed.channel:
            self.end(error)
        elif (channel := self._channels.pop(closed.channel, None)) is not None:
            channel.ended(error)

    def _keep_alive(self, silent: int) -> None:
        """Sends a ping after half a period of silence, and gives the connection up after another half."""
        assert self.welcome is not None
        silent = 0 if self._received else silent + 1
        self._received = False
        if silent > 1:
            if self._link is not None:
                self._link.abort()  # closing would wait for what cannot be sent
            self.end(ConnectionLost(f"the broker sent nothing for {self.welcome.keepalive_seconds:g} seconds or more"))
            return
        if silent:
            self.write(Ping().encode())
        self._keepalive = self.loop.call_later(self.welcome.keepalive_seconds / 2, self._keep_alive, silent)

    # -- ending --------------------------------------------------------------------------------------------------------

    async def wait_closed(self) -> None:
        """Waits, after `end`, until the socket is closed: an event loop that ends earlier logs TLS errors."""
        if self._link is None:
            return
        try:
            async with asyncio.timeout(GONE_SECONDS):
                await self._socket_closed
        except TimeoutError:
            self._link.abort()

    def lost(self, error: Exception | None) -> None:
        if not self._socket_closed.done():
            self._socket_closed.set_result(None)
        self.end(
            ConnectionLost("the broker closed the connection" if error is None else f"the connection failed: {error}")
        )

    def end(self, error: DanubeError) -> None:
        """Ends the connection and fails everything that waits for it. Later calls do nothing."""
        if self.error is not None:
            return
        self.error = error if not isinstance(error, ProtocolError) else ConnectionLost(f"unexpected data: {error}")
        if self._keepalive is not None:
            self._keepalive.cancel()
        if self._link is not None:
            self._link.close()
        if not self._greeted.done():
            self._greeted.set_exception(self.error)
        kind = ClientClosed if isinstance(self.error, ClientClosed) else ConnectionLost
        for answer in self._requests.values():
            if not answer.done():
                answer.set_exception(kind(*self.error.args))
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.broken(self.error)
        self._on_lost(self, self.error)


def _read(request: operation.Request[A], reply: Reply) -> Answer:
    """The answer in the reply. A reply that is not the answer to this request is the broker's fault."""
    where = f"the answer to {request.operation}"
    return operation.read(request.answer, reply.fields, lambda wrong: BrokerProtocolError(f"{where}: {wrong}"))
