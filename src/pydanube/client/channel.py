"""What producers and consumers of one partition have in common: a channel that is opened again whenever it breaks."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import (
    ClientClosed,
    ConnectionLost,
    DanubeError,
    DiskFull,
    OffsetsDamaged,
    SegmentDamaged,
    SegmentMissing,
)
from pydanube.base.retry import Backoff
from pydanube.client.connection import Connection
from pydanube.client.outgoing import fresh
from pydanube.wire.commands import Acked, Deliver, Published, Recall, Reply

if TYPE_CHECKING:
    from pydanube.client.client import Client

RETRY = Backoff(0.05, 2.0)
HINDRANCES = (OffsetsDamaged, SegmentDamaged, SegmentMissing)  # of one partition: the others go on


class ReopeningChannel:
    """`connection` is set while the channel is open. Subclasses say how to open it and what to do then."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.loop = client.loop
        self.number = 0
        self.connection: Connection | None = None
        self.closed = False
        self._task: Task[None] | None = None  # opens it again
        self._asking = False  # the broker may be opening it
        self._attempts = 0  # without success in between
        self.reason: DanubeError | None = None  # why it is not open
        self._full_said = False  # that the broker's disk is full, since something worked
        self._mark: str | None = None  # of what it was opened on: when it is opened again, only the very same will do
        self.hindrance: DanubeError | None = None  # damage on the broker's disk that it stands at, since it was told
        self._ended: DanubeError | None = None  # by the broker, before we looked at the answer that it is open

    # -- for subclasses ------------------------------------------------------------------------------------------------

    def opening(self) -> tuple[str, dict[str, Any]]:
        """The verb that opens it, and its fields."""
        raise NotImplementedError

    def opened(self, reply: Mapping[str, Any]) -> None:
        """It is open: go on."""
        raise NotImplementedError

    def interrupted(self, error: DanubeError) -> None:
        """It is no longer open; it will be opened again."""
        raise NotImplementedError

    def given_up(self, error: DanubeError) -> None:
        """It cannot be opened again: trying does not help."""
        raise NotImplementedError

    def mends(self, error: DanubeError) -> bool:
        """Whether it is worth another try, now or when somebody has mended something."""
        return error.retriable

    def wait_for_mending(self) -> None:
        """It could not be opened, and is worth another try."""
        self._attempts += 1
        self._reopen()

    # -- opening -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        connection = await self.client.connection()
        number = connection.join(self)
        verb, fields = self.opening()
        if self._mark is not None:
            fields["resume"] = self._mark
        self._asking, self._ended = True, None
        try:
            reply = await connection.request(verb, {"channel": number, **fields})
        except DanubeError:  # refused, or there is no connection any more
            connection.leave(number)
            raise
        except BaseException:  # given up by whoever asked, while the broker may be opening it
            self.let_go(connection, number)
            raise
        finally:
            self._asking = False
        if self.closed:
            self.let_go(connection, number)
            raise ClientClosed("closed while being opened")
        if connection.error is not None:
            raise type(connection.error)(*connection.error.args)
        if self._ended is not None:
            raise fresh(self._ended)
        assert isinstance(reply, Reply)
        self.number, self.connection = number, connection
        self._mark = reply.fields.get("resume")
        self.opened(reply.fields)

    def ended(self, error: DanubeError) -> None:
        """The broker closed it: for good if trying again does not help, so that nothing deleted is made again."""
        self._ended = error
        if self.connection is None or self.closed:
            return
        if error.retriable:
            self.broken(error)
            return
        self.connection, self.reason = None, error
        self.closed = True
        self.given_up(error)

    def broken(self, error: DanubeError) -> None:
        if self.connection is None or self.closed:
            return
        self.connection = None
        self.reason = error
        self.interrupted(error)
        self._reopen()

    def reopen(self, error: DanubeError) -> None:
        """Something went wrong on it: a new channel, and what the broker knows of us, before anything else."""
        if self.connection is not None:
            connection, self.connection = self.connection, None
            self.let_go(connection, self.number, returning=True)
            self._attempts += 1
            self.reason = error
            self._say_if_full(error)
            self.interrupted(error)
            self._reopen()

    def worked(self) -> None:
        self._attempts = 0
        self._full_said = False

    def _say_if_full(self, error: DanubeError) -> None:
        """It is tried again for as long as the program waits, and that may be long without a word."""
        if isinstance(error, DiskFull) and not self._full_said:
            self._full_said = True
            self.client.say("disk_full", error)

    def _reopen(self) -> None:
        if self._task is None and not self.closed:
            self._task = self.loop.create_task(self._try_again())

    async def _try_again(self) -> None:
        try:
            while not self.closed:
                await asyncio.sleep(RETRY.after(self._attempts, self.client.randomness.below))
                try:
                    await self.open()
                except DanubeError as error:
                    if not isinstance(
                        error, ConnectionLost
                    ):  # the next connection is waited for, and has its own delay
                        self._attempts += 1
                    self.reason = error
                    self._say_if_full(error)
                    if not self.mends(error) and not self.closed:
                        self.closed = True
                        self.given_up(error)
                        return
                else:
                    return
        finally:
            self._task = None

    def close_at_once(self) -> None:
        """Without waiting for the broker to hear of it."""
        connection = self._detach()
        if connection is not None:
            self.let_go(connection, self.number)

    def _detach(self) -> Connection | None:
        self.closed = True
        if self._task is not None and not self._asking:  # else it closes what the broker opens, when it has the answer
            self._task.cancel()
        connection, self.connection = self.connection, None
        return connection

    async def close_channel(self, *, wait: bool = True) -> None:
        if not wait:
            self.close_at_once()
            return
        connection = self._detach()
        if connection is None:
            return
        try:
            await self.client.within("close", connection.request("close", {"channel": self.number}))
        except DanubeError:
            pass  # gone already, which is what was wanted
        except BaseException:  # given up, perhaps before it was asked
            connection.tell("close", {"channel": self.number})
            raise
        finally:
            connection.leave(self.number)

    def disown(self, error: DanubeError) -> None:
        """It belongs to another process, and so does its connection."""
        self.connection, self.closed, self.reason = None, True, error

    def let_go(self, connection: Connection, number: int, *, returning: bool = False) -> None:
        """With `returning` another one is opened at once: the broker is to remember who we are until then."""
        connection.leave(number)
        connection.tell("close", {"channel": number, **({"returning": True} if returning else {})})

    # -- what only some channels get -----------------------------------------------------------------------------------

    def published(self, answer: Published) -> None: ...

    def acked(self, answer: Acked) -> None: ...

    def refused(self, request: int, error: DanubeError) -> None: ...

    def delivered(self, delivery: Deliver) -> None: ...

    def reset(self, generation: int) -> None: ...

    def recalled(self, recall: Recall) -> None: ...

    def limited(self, message_bytes_max: int | None) -> None: ...

    def timed(self, ack_timeout: int | None) -> None: ...
