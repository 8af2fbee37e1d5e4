"""One HTTP/2 connection of the listener: passes events of the core to services, and sends their answers.

The only thing it decides is when a call is over. Its memory is bounded, for a slow reader by the core and for a fast
writer by the intake: a peer that does not read, or sends more than is being written, is not read from.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, TimerHandle, Transport
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pydanube.access.principals import Principal
from pydanube.access.rights import Action
from pydanube.api.grpc.calls import Call, Method
from pydanube.api.grpc.face import GrpcFace
from pydanube.api.grpc.field_count import has_too_many_fields
from pydanube.api.grpc.messages import DecodeError
from pydanube.api.listening.buffers import coalesced
from pydanube.api.listening.callers import Callers
from pydanube.api.listening.deadlines import Deadline
from pydanube.api.listening.face import Summary
from pydanube.api.listening.failures import error_of
from pydanube.api.listening.peer import peer_of
from pydanube.api.listening.turns import Worker
from pydanube.base.errors import (
    DanubeError,
    GrpcCallInvalid,
    GrpcEncodingUnknown,
    HttpBusy,
    HttpTooSlow,
    NotServed,
    RequestInvalid,
)
from pydanube.base.errors.root import GrpcStatus
from pydanube.base.limits import (
    CHANNELS_MAX,
    GRPC_ANONYMOUS_BYTES_MAX,
    GRPC_BODIES_BYTES_MAX,
    GRPC_BODY_SECONDS,
    GRPC_FIELDS_MAX,
    GRPC_GOODBYE_SECONDS,
    GRPC_MESSAGES_AT_ONCE,
    HTTP2_WORK_AT_ONCE,
    SECOND,
)
from pydanube.broker.door.session import Origin
from pydanube.wire.http2.connection import ServerConnection
from pydanube.wire.http2.events import ConnectionEnded, DataReceived, Event, RequestReceived, StreamReset
from pydanube.wire.http2.fields import Head
from pydanube.wire.http2.grpc import (
    NOT_GRPC,
    NOT_GRPC_TEXT,
    PREFIX_BYTES,
    MessageReader,
    is_call,
    only_message,
    refusal,
    timeout_of,
)

if TYPE_CHECKING:
    from pydanube.api.grpc.consumers import Acks, GrpcConsumer
    from pydanube.api.grpc.producers import GrpcProducer, Sends
    from pydanube.api.grpc.services import GrpcServices
    from pydanube.broker.door.values import SubscriptionHandle

log = logging.getLogger(__name__)
_GRPC = b"application/grpc"
_IDENTITY = b"identity"  # means: not compressed
SWEPT_MIN = 64  # subscriptions of a connection; fewer are not worth the sweep


class _Incoming:
    """A call whose body has not arrived completely, or that has many messages."""

    __slots__ = ("call", "held", "messages", "method", "reader", "timer")

    def __init__(self, call: Call, method: Method) -> None:
        self.call = call
        self.method = method
        self.reader = MessageReader()
        self.messages: deque[bytes] = deque()  # complete, but not served yet
        self.held = 0  # bytes that arrived and are still needed
        self.timer: TimerHandle | None = None  # limits the time until the rest has arrived


class GrpcConnection(Worker):
    """Created when the preface has arrived; `receive` gets all bytes from the preface on."""

    def __init__(
        self, services: GrpcServices, methods: Mapping[bytes, Method], names: frozenset[str], transport: Transport
    ) -> None:
        super().__init__(services.turns)
        self.services = services
        self.names = names  # of the services at the address that the client connected to
        self.draining = False  # the client was told that the connection will end
        self.farewells: dict[int, bytes] = {}  # what a stream is sent before it ends with the connection, by stream
        self.core = ServerConnection()
        self.heard = True  # whether bytes have arrived since the last check
        self.writable = True
        self.closed = False
        self.sends: dict[GrpcProducer, Sends] = {}  # messages of the current read
        self.acks: dict[SubscriptionHandle, Acks] = {}  # acks of the current read, by subscription
        self.subscriptions: dict[tuple[str, str], SubscriptionHandle] = {}  # those it has acked to, by topic and name
        self.producers: dict[tuple[Principal, int], GrpcProducer] = {}  # opened or used on it, by their keys
        self.consumers: dict[tuple[Principal, int], GrpcConsumer] = {}  # those that receive on it, or subscribed on it
        self.woken: dict[int, Callable[[], None]] = {}  # by stream: called when there is room again
        self._sweep_at = SWEPT_MIN  # number of subscriptions
        self._methods = methods
        self._transport = transport
        self._callers = Callers(services.door, Origin(GrpcFace.name, peer_of(transport)))
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, Call] = {}  # those with a deadline, a task or a stream of answers
        self._incoming: dict[int, _Incoming] = {}
        self._account = services.door.account()  # counts what it publishes until it is confirmed
        self._unserved: dict[int, Callable[[], None]] = {}  # by stream: serves messages that wait for a step
        self._declined: dict[int, bool] = {}  # streams that are not calls, until complete; true if the method is HEAD
        self._reading = False  # within a turn, which flushes at its end
        self._flushing = False
        self._came = b""  # bytes that were not examined yet
        self._behind: list[Callable[[], None]] = []

    greeted = True  # the preface says which protocol it is

    @property
    def waiting(self) -> bool:
        """Whether the client may be sending, but is not read from."""
        return self.choked

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        self.heard = True
        if self.lagging:
            self._came += data
            self._read_or_not()
        else:
            self._came = data
        self.work(len(data))

    def _read(self, data: bytes, work: int) -> None:
        for event in self.core.receive(data, int(self._loop.time() * SECOND), work):
            self._take(event)

    def _step(self) -> bool:
        if self.closed:
            return False
        self._reading = True
        if self._unserved:  # first, because they arrived first
            self._unserved.pop(next(iter(self._unserved)))()
        elif self._came or self.core.more:
            data, self._came = self._came, b""
            self._read(data, HTTP2_WORK_AT_ONCE)
        return bool(self._unserved) or self.core.more or bool(self._came)

    def _turn_over(self) -> None:
        if self._behind:
            behind, self._behind = self._behind, []
            for work in behind:
                work()
        self._reading = False
        self._flush()

    def _take(self, event: Event) -> None:
        if type(event) is RequestReceived:
            self._begin(event)
        elif type(event) is DataReceived:
            incoming = self._incoming.get(event.stream)
            if incoming is not None:
                self._feed(incoming, event.data, event.ended)
            elif event.stream in self._declined:
                self._decline(event.stream, len(event.data), event.ended)
        elif type(event) is StreamReset:
            self._declined.pop(event.stream, None)
            self._drop_body(event.stream)
            self._give_up(event.stream, left=True)
        elif type(event) is ConnectionEnded:
            log.info("closing an HTTP/2 connection: %s", event.error)

    def behind(self, work: Callable[[], None]) -> None:
        """Calls `work` when everything that arrived with this call was examined, so that calls can share the work."""
        if self._reading:
            self._behind.append(work)
        else:
            self._loop.call_soon(work)

    def touch(self) -> None:
        """Schedules a write, together with everything else of this turn."""
        if not self._reading and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        core = self.core
        output = core.take_output()
        while output and not self._transport.is_closing():
            self._transport.writelines(coalesced(output))
            self._wake()
            output = core.take_output()
        if (core.ended or core.drained) and not self._transport.is_closing():
            self._transport.close()

    def _wake(self) -> None:
        """Calls back the streams that waited for room and have some again."""
        for stream in self.core.take_woken():
            wanted = self.woken.pop(stream, None)
            if wanted is not None:
                wanted()
        if self._unserved:
            self.fall_behind()

    # -- the doorway's calls -------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self.writable = False
        self.core.pause()
        self._read_or_not()

    def resume(self) -> None:
        self.writable = True
        self.core.resume()
        self._read_or_not()
        self._wake()
        self._flush()

    def ask(self) -> None:
        """Sends a ping, to see whether the peer is alive."""
        if self.writable:
            self.core.ping()
            self._flush()

    def stop(self, error: DanubeError) -> None:
        """Says goodbye and ends its streams, so that clients reconnect; calls in progress have a moment to finish."""
        if self.closed:
            return
        self.draining = True
        self.core.drain()
        for call in list(self._calls.values()):
            if call.begun:
                if call.stream in self.farewells:
                    call.send(self.farewells[call.stream])
                call.fail(error)
        self._flush()
        self._loop.call_later(GRPC_GOODBYE_SECONDS, self._transport.close)

    def too_slow(self, seconds: float) -> None:
        """Never called: the preface is all that is waited for."""

    def summary(self) -> Summary:
        return Summary("", len(self.producers), len(self.consumers))

    def lost(self) -> None:
        """The socket is gone, and so is the client."""
        self.closed = True
        for stream in list(self._calls):
            self._give_up(stream, left=False)
        self.services.forget(self)
        for stream in list(self._incoming):
            self._drop_body(stream)
        self.sends.clear()
        self.acks.clear()
        self.subscriptions.clear()

    def remember(self, names: tuple[str, str], handle: SubscriptionHandle) -> None:
        """Remembers a subscription for later acks. Handles of topics that are gone are removed now and then, to free
        memory."""
        known = self.subscriptions
        if len(known) >= self._sweep_at:
            known = self.subscriptions = {name: each for name, each in known.items() if each.served}
            if len(known) >= CHANNELS_MAX:
                del known[next(iter(known))]
            self._sweep_at = min(CHANNELS_MAX, max(SWEPT_MIN, 2 * len(known)))
        known[names] = handle

    # -- what it publishes ---------------------------------------------------------------------------------------------

    @property
    def choked(self) -> bool:
        """Whether so many of its bytes wait for the journal that no more is read."""
        return self._account.full

    def await_written(self, written: Future[None], size: int) -> None:
        """Counts bytes until they are written. What exceeds the journal's speed stays in the socket."""
        if not written.done():
            written.add_done_callback(partial(self._written, size))
            if self._account.add(size):
                self._read_or_not()

    def _written(self, size: int, written: Future[None]) -> None:
        if self._account.remove(size):
            self._read_or_not()

    def _read_or_not(self) -> None:
        if self._transport.is_closing():
            return
        if self.writable and not self.choked and not self.lagging:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _begin(self, event: RequestReceived) -> None:
        stream, head, data, ended = event
        if head.fields.get(b"content-type") != _GRPC and not is_call(head):
            self._declined[stream] = head.method == b"HEAD"
            self._decline(stream, len(data), ended)
            return
        call = Call(self, stream)
        try:
            method = self._methods.get(head.path)
            if method is None:
                raise NotServed(f"unknown method {head.path[:200].decode('ascii', 'replace')}")
            call.session = self._callers.session_of(head.fields.get(b"authorization"))
            if head.fields.get(b"grpc-encoding", _IDENTITY) != _IDENTITY:
                raise GrpcEncodingUnknown("compressed messages are not supported")
            if b"grpc-timeout" in head.fields:
                self._limit(call, head)
            if ended and not method.streams_in:
                self._run(call, method, only_message(data))
            else:
                incoming = self._incoming[stream] = _Incoming(call, method)
                self._feed(incoming, data, ended)
        except Exception as error:
            self._failed(call, error)

    def _feed(self, incoming: _Incoming, data: bytes, ended: bool) -> None:
        call, reader, streams_in = incoming.call, incoming.reader, incoming.method.streams_in
        try:
            self._hold(incoming, len(data))
            incoming.messages += reader.feed(data)
            if incoming.held + reader.missing > GRPC_ANONYMOUS_BYTES_MAX:
                call.session.ask(Action.SECURITY_SELF)  # otherwise it would keep others from the room
            if ended:
                reader.end()
            may_go_on = streams_in and self._run_each(incoming)
            if not streams_in and len(incoming.messages) > 1:
                raise GrpcCallInvalid("the body has more than one message")
            self._set_timer(incoming, running=not streams_in or incoming.held > 0)
            if streams_in and incoming.messages:
                waits = self._unserved if may_go_on else self.woken
                waits[call.stream] = partial(self._feed, incoming, b"", ended)
            elif ended:
                self._drop_body(call.stream)
                self._end_of_body(incoming)
            elif reader.missing:
                self.core.expect(call.stream, reader.missing)
        except Exception as error:
            self._drop_body(call.stream)
            self._failed(call, error)

    def _decline(self, stream: int, size: int, ended: bool) -> None:
        """Answers a request that is not a gRPC call when it is complete, as HTTP requires; its body is not kept."""
        if not ended:
            self.core.data_consumed(stream, size)
            return
        only_head = self._declined.pop(stream)
        self.core.respond(stream, NOT_GRPC, end=only_head)
        if not only_head:
            self.core.send_data(stream, NOT_GRPC_TEXT, end=True)

    def _run_each(self, incoming: _Incoming) -> bool:
        """Serves a few messages while their answers have room; later messages wait, and flow control limits them to a
        window.

        Returns False if it waits for room.
        """
        call, messages = incoming.call, incoming.messages
        done, few = 0, GRPC_MESSAGES_AT_ONCE
        while messages and few and call.room():
            few -= 1
            message = messages.popleft()
            done += PREFIX_BYTES + len(message)
            self._run(call, incoming.method, message)
        if done:
            self._set_timer(incoming, running=False)
            self._hold(incoming, -done)
            self.core.data_consumed(call.stream, done)
        return not few

    def _end_of_body(self, incoming: _Incoming) -> None:
        if incoming.method.streams_in:
            incoming.call.finish()
        elif not incoming.messages:
            raise GrpcCallInvalid("the body has no message")
        else:
            self._run(incoming.call, incoming.method, incoming.messages[0])

    # -- what has come of bodies ---------------------------------------------------------------------------------------

    def _hold(self, incoming: _Incoming, size: int) -> None:
        incoming.held += size
        self.services.held += size
        if size > 0 and self.services.held > GRPC_BODIES_BYTES_MAX:
            raise HttpBusy("other requests are being received")

    def _set_timer(self, incoming: _Incoming, *, running: bool) -> None:
        if running and incoming.timer is None:
            incoming.timer = self._loop.call_later(GRPC_BODY_SECONDS, self._body_due, incoming)
        elif not running and incoming.timer is not None:
            incoming.timer.cancel()
            incoming.timer = None

    def _body_due(self, incoming: _Incoming) -> None:
        """Like a `Deadline`, which most calls would create for nothing."""
        self.turns.later(partial(self._too_slow, incoming))

    def _too_slow(self, incoming: _Incoming, _: float) -> None:
        if incoming.timer is None:
            return  # the rest came while this waited for its turn
        self._drop_body(incoming.call.stream)
        incoming.call.fail(HttpTooSlow(f"the body did not arrive completely within {GRPC_BODY_SECONDS:.0f} s"))

    def _drop_body(self, stream: int) -> None:
        """Frees the memory of a body. Called whenever a body is no longer needed."""
        incoming = self._incoming.pop(stream, None)
        if incoming is not None:
            self._hold(incoming, -incoming.held)
            self._set_timer(incoming, running=False)

    # -- running them --------------------------------------------------------------------------------------------------

    def _run(self, call: Call, method: Method, body: bytes) -> None:
        if has_too_many_fields(body):
            raise RequestInvalid(f"more than {GRPC_FIELDS_MAX} fields (each attribute counts as one)")
        try:
            request = method.request.FromString(body)
        except DecodeError:
            raise GrpcCallInvalid(f"the message is not a valid {method.request.DESCRIPTOR.full_name}") from None
        if method.waits:
            self.spawn(call, self._reply(call, method, request))
        else:
            method.run(call, request)

    async def _reply(self, call: Call, method: Method, request: Any) -> None:
        await self.turns.begin()
        call.reply((await method.run(call, request)).SerializeToString())

    def spawn(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        """Starts work that a call waits for; a failure becomes its answer."""
        self._keep(call)
        call.task = self._loop.create_task(self._guard(call, work))
        call.task.add_done_callback(lambda _: work.close())  # it may have been given up before it began

    async def _guard(self, call: Call, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            self._failed(call, error)

    def _failed(self, call: Call, error: Exception) -> None:
        call.fail(error_of(error))

    def _limit(self, call: Call, head: Head) -> None:
        timeout = timeout_of(head)
        if timeout is not None:
            self._keep(call)
            call.timer = Deadline(self.turns, timeout / SECOND, partial(self._too_late, call))

    def _too_late(self, call: Call) -> None:
        self._give_up(call.stream, left=True)
        self._drop_body(call.stream)
        call.finish(GrpcStatus.DEADLINE_EXCEEDED, "The deadline that the client set for the call has passed.")

    def _keep(self, call: Call) -> None:
        call.kept = True
        self._calls[call.stream] = call

    def keep(self, call: Call, ended: Callable[[bool], None]) -> None:
        """Keeps a call open: `ended` is called when it is cancelled, its deadline passes, or the client is gone."""
        self._keep(call)
        call.ended = ended

    def settle(self, call: Call) -> None:
        """Forgets a call that was answered."""
        if self._calls.pop(call.stream, None) is not None and call.timer is not None:
            call.timer.cancel()
        self._forget_stream(call.stream)
        self.touch()

    def _forget_stream(self, stream: int) -> None:
        self.woken.pop(stream, None)
        self._unserved.pop(stream, None)
        self.farewells.pop(stream, None)

    def _give_up(self, stream: int, *, left: bool) -> None:
        self._forget_stream(stream)
        call = self._calls.pop(stream, None)
        if call is None:
            return
        if call.timer is not None:
            call.timer.cancel()
        if call.task is not None:
            call.task.cancel()
        if call.ended is not None:
            call.ended(left)

    def refuse_call(self, stream: int, status: GrpcStatus, message: str) -> None:
        self.core.respond(stream, refusal(status, message), end=True)
        self.touch()
