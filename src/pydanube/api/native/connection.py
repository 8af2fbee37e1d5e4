"""One native connection: reads frames, calls its session, and sends frames.

The only thing it decides is which request an answer belongs to. Owned by the broker's loop. Its memory for a slow
reader is bounded: a consumer gets more messages only while the socket accepts them.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Lock, Task, TimerHandle, Transport
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pydanube.access.principals import NEVER
from pydanube.api.listening.buffers import coalesced
from pydanube.api.listening.face import Summary
from pydanube.api.listening.failures import error_of
from pydanube.api.listening.peer import peer_of
from pydanube.api.listening.turns import Worker
from pydanube.api.native.consumers import ConsumerChannel
from pydanube.api.native.operations import VERBS, Verb
from pydanube.api.native.producers import ProducerChannel
from pydanube.base.errors import (
    ChannelInvalid,
    DanubeError,
    LimitReached,
    ProtocolError,
    TokenExpired,
    TopicBusy,
    VerbUnknown,
)
from pydanube.base.limits import (
    CHANNELS_MAX,
    FRAMES_AT_ONCE,
    FRAMES_AT_ONCE_BYTES,
    FRAMES_CUT_AT_ONCE,
    MIB,
    RANGES_AT_ONCE,
    REQUESTS_AT_ONCE_MAX,
    SECOND,
    TURN_SECONDS,
)
from pydanube.broker.door.session import Origin, Session
from pydanube.broker.door.values import Receipt
from pydanube.operations.operation import Request as Operation
from pydanube.operations.operation import read
from pydanube.wire.batch import Batch
from pydanube.wire.commands import (
    NO_OFFSET,
    Ack,
    Acked,
    Closed,
    Command,
    Error,
    Grant,
    Hello,
    Nack,
    Ping,
    Pong,
    Publish,
    Published,
    Reply,
    RequestFrame,
    Taken,
    decode,
)
from pydanube.wire.commands import Receipt as Durability
from pydanube.wire.frames import Buffer, Frame, FrameKind, FrameReader, Side

if TYPE_CHECKING:
    from pydanube.api.native.face import NativeFace

AnyChannel = ProducerChannel | ConsumerChannel
CLIENT_CHARACTERS_MAX = 100  # of the name that a client gives itself, which is kept for display
FLUSH_BYTES = 1 * MIB  # written to the socket at once, so that it can signal when it has enough


class NativeConnection(Worker):
    """Created when the preface has arrived; `receive` gets all bytes from the preface on."""

    def __init__(self, face: NativeFace, transport: Transport) -> None:
        super().__init__(face.turns)
        self.session: Session  # of its caller, since the greeting
        self.client = ""  # the name that the client gives itself
        self.channels: dict[int, AnyChannel] = {}
        self._opening: dict[int, bool] = {}  # channels that are being opened, and whether they are still wanted
        self._last_channel = 0
        self.writable = True
        self.reading = Lock()  # long answers are built one at a time
        self._room: Future[None] | None = None  # done when it is writable again
        self.heard = True  # whether a whole frame has arrived since the last check
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(Side.BROKER)
        self._unfinished = face.unfinished
        self._frames: deque[Frame] = deque()  # received but not served yet
        self._parts: deque[Ack | Nack | Taken] = deque()  # served before them: parts of a command with many ranges
        self._fault: ProtocolError | None = None  # raised after them
        self._begun = False  # whether an incomplete frame follows them, which was not examined yet
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._flushing = False
        self._tasks: dict[Task[None], None] = {}
        self._watch: Future[None] | None = None  # of the request that waits for changes of topics
        self._leaving: deque[AnyChannel] = deque()  # channels to close after the connection is gone
        self._face = face
        self._account = face.door.account()  # counts what it publishes until it is confirmed
        self._origin = Origin(face.name, peer_of(transport))
        self._expiry: TimerHandle | None = None  # ends it when the token of its caller expires
        self._greeted = False
        self._closed = False

    @property
    def greeted(self) -> bool:
        return self._greeted

    @property
    def waiting(self) -> bool:
        """Whether the client may be sending, but is not read from."""
        return self.choked

    def summary(self) -> Summary:
        producers = sum(isinstance(each, ProducerChannel) for each in self.channels.values())
        return Summary(self.client, producers, len(self.channels) - producers)

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Takes bytes. What arrives while the connection is behind is handled in its turn."""
        if self._fault is not None:
            return
        if self.lagging or self._frames or self._parts:
            self._reader.keep(data)
            self._read_or_not()
        else:
            self._cut(data)
        self.work(len(data))

    def _cut(self, data: bytes = b"") -> None:
        """Cuts frames out of the bytes. An invalid frame ends the connection, after earlier frames were served."""
        reader = self._reader
        had = reader.held
        try:
            frames = reader.feed(data, FRAMES_CUT_AT_ONCE)
        except ProtocolError as error:
            frames, self._fault = reader.before_fault, type(error)(*error.args)  # a copy without a traceback
        if frames or self._fault is not None:
            self.heard = True
            self._frames += frames
        if self._fault is None and (had or reader.held):
            begun = not had or bool(frames)
            self._begun = self._begun or begun
            self._unfinished.hold(self, reader.held, begun=begun)

    def _skip_unwanted(self) -> None:
        """Discards a batch for an unknown producer while it is still being received."""
        reader, self._begun = self._reader, False
        if (found := reader.unfinished) is not None and found[0] == FrameKind.PUBLISH:
            _, channel, request = found
            if channel not in self._opening and not isinstance(self.channels.get(channel), ProducerChannel):
                reader.skip()
                self._unfinished.forget(self)
                self._fail(channel, request, ChannelInvalid(f"channel {channel} is not a producer"))

    def _step(self) -> bool:
        """Serves a few frames, as long as the peer reads the answers."""
        frames, size = self._frames, 0
        if not self.writable:
            return False
        if self._parts:
            part = self._parts.popleft()
            _HANDLERS[type(part)](self, part)
            return bool(self._parts or frames or self._reader.more)
        if not frames and self._reader.more:
            self._cut()
        for _ in range(min(len(frames), FRAMES_AT_ONCE)):
            if self._closed:
                break
            frame = frames.popleft()
            try:
                command = decode(frame)
                _HANDLERS[type(command)](self, command)
            except ProtocolError as error:
                self._fault = type(error)(*error.args)
                frames.clear()
                break
            size += len(frame.body)
            if size > FRAMES_AT_ONCE_BYTES or self._parts:
                break
        if self._closed:
            frames.clear()
        elif not frames and self._fault is not None:
            self.stop(self._fault)
        elif not frames and self._begun:
            self._skip_unwanted()
        return bool(self._parts or frames or self._reader.more)

    def send(self, buffers: list[Buffer]) -> None:
        """Sends the buffers together with everything else of this turn in one write, unless that is a lot."""
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        if self._out_bytes > FLUSH_BYTES:
            self._flush_now()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._flush_now()

    def _flush_now(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if out and not self._transport.is_closing():
            self._transport.writelines(coalesced(out))

    def stop(self, error: DanubeError) -> None:
        """Tells the client why, and closes."""
        if not self._closed:
            self.send(Closed.of(error).encode())
            self._flush()
            self._transport.close()
            self._forget_frame()

    def too_slow(self, seconds: float) -> None:
        self.stop(ProtocolError(f"no HELLO within {seconds:.0f} s"))

    def _forget_frame(self) -> None:
        """Drops an incomplete frame, because the rest of it will not arrive."""
        self._unfinished.forget(self)
        self._reader = FrameReader(Side.BROKER)

    def ask(self) -> None:
        """Sends a ping, but not while the socket is blocked: the answer would come only after everything queued."""
        if self.writable:
            self.send(Ping().encode())

    def pause(self) -> None:
        """The socket accepts no more for now, so its consumers get no more deliveries."""
        self.writable = False
        self._read_or_not()
        for channel in self.channels.values():
            if isinstance(channel, ConsumerChannel):
                channel.hold_back()

    async def room(self) -> None:
        """Waits while the peer does not read what it was sent."""
        while not self.writable:
            self._room = self._room or self._loop.create_future()
            await asyncio.wait([self._room])

    def resume(self) -> None:
        self.writable = True
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
        self.work()
        self._read_or_not()
        for channel in self.channels.values():
            if isinstance(channel, ConsumerChannel):
                channel.top_up()

    def _read_or_not(self) -> None:
        """Does not read from a peer that does not read its answers, or publishes faster than the journal writes."""
        if self._transport.is_closing():
            return
        if self.writable and not self.choked and not self.lagging:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def lost(self) -> None:
        """The socket is gone."""
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._tasks:
            task.cancel()
        self._leaving.extend(self.channels.values())
        self.channels.clear()
        self._frames.clear()
        self._parts.clear()
        self._out.clear()
        self._forget_frame()
        self._leave(self.turns.now() + TURN_SECONDS)

    def _leave(self, end: float) -> None:
        """Closes the channels one after the other: there may be thousands, and each may need much cleaning up."""
        leaving = self._leaving
        try:
            for _ in range(len(leaving)):
                channel = leaving.popleft()
                if channel.unsettled:
                    leaving.append(channel)
                else:
                    channel.lost()
                if self.turns.now() >= end:
                    break
        finally:  # even if one fails, the others leave
            if leaving:
                self.turns.later(self._leave)

    # -- commands ------------------------------------------------------------------------------------------------------

    def _hello(self, hello: Hello) -> None:
        door = self._face.door
        try:
            self.session = door.authenticate(hello.token or None, self._origin, needs_token=True)
        except DanubeError as error:
            self.stop(error)
            return
        expires = self.session.principal.expires
        if expires < NEVER:
            left = (expires - door.clock.wall()) / SECOND
            self._expiry = self._loop.call_later(left, self.stop, TokenExpired("the token has expired"))
        self._greeted = True
        self.client = hello.client[:CLIENT_CHARACTERS_MAX]
        self._reader.welcome()
        self.send(self._face.welcome().encode())

    def _ping(self, ping: Ping) -> None:
        self.send(Pong(ping.request).encode())

    def _pong(self, pong: Pong) -> None:
        """Nothing to do: any frame shows that the peer is alive."""

    def _publish(self, publish: Publish) -> None:
        channel = self.channels.get(publish.channel)
        try:
            if not isinstance(channel, ProducerChannel):
                raise ChannelInvalid(f"channel {publish.channel} is not a producer")
            receipt = channel.publish(Batch.parse(publish.batch))
        except DanubeError as error:
            self._fail(publish.channel, publish.request, error)
            return
        self._await(receipt.written or receipt.confirmed, len(publish.batch))
        answer = partial(self._published, channel, publish.request, receipt)
        if receipt.confirmed.done():
            answer(receipt.confirmed)
        else:
            receipt.confirmed.add_done_callback(answer)

    def _await(self, written: Future[None], size: int) -> None:
        """Counts bytes until they are written. What exceeds the journal's speed stays in the socket, so that the queue
        in front of other publishers stays short."""
        if written.done():
            return
        written.add_done_callback(partial(self._written, size))
        if self._account.add(size):
            self._read_or_not()

    def _written(self, size: int, written: Future[None]) -> None:
        if self._account.remove(size):
            self._read_or_not()

    @property
    def choked(self) -> bool:
        """Whether so many of its bytes wait for the journal that no more is read."""
        return self._account.full

    def _published(self, channel: ProducerChannel, request: int, receipt: Receipt, confirmed: Future[None]) -> None:
        error = None if confirmed.cancelled() else confirmed.exception()
        if channel.ended:
            return
        if error is not None:
            self._fail(channel.number, request, error)
        elif request:
            durability, copies = channel.durability
            offset = NO_OFFSET if durability == Durability.NONE else receipt.offset
            self.send(Published(channel.number, request, offset, durability, copies, receipt.duplicate).encode())

    def _grant(self, grant: Grant) -> None:
        channel = self.channels.get(grant.channel)
        if isinstance(channel, ConsumerChannel):
            channel.grant(grant.permits, grant.bytes)
        else:
            self._fail(grant.channel, 0, ChannelInvalid(f"channel {grant.channel} is not a consumer"))

    def _ack(self, ack: Ack) -> None:
        if self._take_apart(ack):
            return
        channel = self.channels.get(ack.channel)
        try:
            if not isinstance(channel, ConsumerChannel):
                raise ChannelInvalid(f"channel {ack.channel} is not a consumer")
            done = channel.ack(ack)
        except DanubeError as error:
            self._parts.clear()
            self._fail(ack.channel, ack.request, error)
            return
        request = 0 if self._parts else ack.request  # only the last part is answered: it becomes durable last
        done.add_done_callback(partial(self._acked, channel, request))

    def _take_apart(self, command: Ack | Nack | Taken) -> bool:
        """Splits a command with many ranges into several steps, because each range takes up to ten microseconds."""
        ranges = command.ranges
        if len(ranges) <= RANGES_AT_ONCE:
            return False
        pieces = [ranges[at : at + RANGES_AT_ONCE] for at in range(0, len(ranges), RANGES_AT_ONCE)]
        self._parts.extend(command._replace(ranges=piece) for piece in pieces)
        return True

    def _acked(self, channel: ConsumerChannel, request: int, done: Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if channel.ended:
            return
        if error is not None:
            self._fail(channel.number, request, error)
        elif request:
            self.send(Acked(channel.number, request).encode())

    def _nack(self, nack: Nack) -> None:
        if self._take_apart(nack):
            return
        channel = self.channels.get(nack.channel)
        if isinstance(channel, ConsumerChannel):
            channel.nack(nack)
        else:
            self._parts.clear()
            self._fail(nack.channel, nack.request, ChannelInvalid(f"channel {nack.channel} is not a consumer"))

    def _taken(self, taken: Taken) -> None:
        if self._take_apart(taken):
            return
        channel = self.channels.get(taken.channel)
        if isinstance(channel, ConsumerChannel):
            channel.taken(taken)
        else:
            self._parts.clear()
            self._fail(taken.channel, 0, ChannelInvalid(f"channel {taken.channel} is not a consumer"))

    def _fail(self, channel: int, request: int, error: BaseException) -> None:
        failure = error_of(error)
        if not self._closed:
            self.send(Error.of(failure, channel, request).encode())

    def replace_watch(self) -> Future[None]:
        """A future for a request that waits for changes of topics: done when the next such request arrives."""
        if self._watch is not None and not self._watch.done():
            self._watch.set_result(None)
        self._watch = self._loop.create_future()
        return self._watch

    # -- requests ------------------------------------------------------------------------------------------------------

    def _request(self, request: RequestFrame) -> None:
        found = VERBS.get(request.verb)
        if found is None:
            self._fail(0, request.request, VerbUnknown(f"unknown verb {request.verb!r}"))
            return
        if len(self._tasks) >= REQUESTS_AT_ONCE_MAX:
            self._fail(0, request.request, TopicBusy(f"{REQUESTS_AT_ONCE_MAX} requests are already in progress"))
            return
        task = self._loop.create_task(self._answer(*found, request))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _answer(self, operation: type[Operation[Any]], verb: Verb, request: RequestFrame) -> None:
        try:
            await self.turns.begin()
            answer = await verb(self, read(operation, request.fields), request.request)
        except Exception as error:
            self._fail(0, request.request, error)
            return
        if answer is None or not request.request or self._closed:
            return
        try:
            self.send(Reply(request.request, answer.to_fields()).encode())
        except DanubeError as error:  # longer than a reply may be
            self._fail(0, request.request, error)

    # -- channels ------------------------------------------------------------------------------------------------------

    @contextmanager
    def opening(self, number: int) -> Iterator[None]:
        """A channel is being opened. Numbers only grow, so that a late frame never reaches a newer channel."""
        if number <= self._last_channel:
            raise ChannelInvalid(f"channel {number} was used before; the last one was {self._last_channel}")
        if len(self.channels) + len(self._opening) >= CHANNELS_MAX:
            raise LimitReached(f"{CHANNELS_MAX} channels are already open on this connection")
        self._last_channel = number
        self._opening[number] = True
        try:
            yield
        finally:
            del self._opening[number]

    def add(self, channel: AnyChannel) -> None:
        """Registers an open channel; raises if it was closed meanwhile or the connection is gone."""
        if self._closed or not self._opening[channel.number]:
            channel.lost() if self._closed else channel.close(crashed=False)
            raise ChannelInvalid(f"channel {channel.number} was closed while being opened")
        self.channels[channel.number] = channel

    def close_channel(self, number: int, *, crashed: bool, returning: bool) -> None:
        """The client closes a channel, which may still be opening."""
        channel = self.channels.pop(number, None)
        if isinstance(channel, ProducerChannel) and returning:
            channel.lost()
        elif channel is not None:
            channel.close(crashed=crashed)
        elif number in self._opening:
            self._opening[number] = False
        else:
            raise ChannelInvalid(f"channel {number} is not open")

    def end(self, channel: AnyChannel, error: DanubeError) -> None:
        """The broker closes a channel, and says why; nothing more is sent on it."""
        channel.ended = True
        if self.channels.pop(channel.number, None) is not None and not self._closed:
            self.send(Closed.of(error, channel.number).encode())


_HANDLERS: dict[type[Command], Callable[..., None]] = {  # unbound, so that a connection has no reference to itself
    Publish: NativeConnection._publish,
    Ack: NativeConnection._ack,
    Grant: NativeConnection._grant,
    Nack: NativeConnection._nack,
    Taken: NativeConnection._taken,
    RequestFrame: NativeConnection._request,
    Ping: NativeConnection._ping,
    Pong: NativeConnection._pong,
    Hello: NativeConnection._hello,
}
