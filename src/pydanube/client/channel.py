"""What producers and consumers of one partition share: a channel that is opened again whenever it breaks."""

from __future__ import annotations

import asyncio
from asyncio import Task
from typing import TYPE_CHECKING, Generic, TypeVar

from pydanube.base.errors import (
    BrokerProtocolError,
    ClientClosed,
    ConnectionLost,
    DanubeError,
    DiskFull,
    OffsetsDamaged,
    SegmentDamaged,
    SegmentMissing,
)
from pydanube.base.retry import Backoff
from pydanube.client.connection import Channel, Connection
from pydanube.client.errors import copy_of
from pydanube.operations.channels import CloseChannel, OpenedConsumer, OpenedProducer
from pydanube.operations.operation import Request

if TYPE_CHECKING:
    from pydanube.client.client import Client

Opened = TypeVar("Opened", OpenedProducer, OpenedConsumer)  # what the broker says about the open channel
RETRY = Backoff(0.05, 2.0)
DAMAGE_ERRORS = (OffsetsDamaged, SegmentDamaged, SegmentMissing)  # damage of one partition; the others continue


class ReopeningChannel(Channel, Generic[Opened]):
    """`connection` is set while the channel is open. Subclasses define how to open it and what happens then."""

    def __init__(self, client: Client) -> None:
        self.client: Client = client
        self.loop = client.loop
        self.number = 0
        self.connection: Connection | None = None
        self.closed = False
        self._task: Task[None] | None = None  # opens the channel again
        self._opening = False  # a request to open it is unanswered
        self._attempts = 0  # since the last success
        self.reason: DanubeError | None = None  # why it is not open
        self._disk_full_reported = False  # that the broker's disk is full, since something on_success
        self.mark: str | None = None  # of the topic: another topic with the same name is refused later
        self.damage: DanubeError | None = None  # damage on the broker's disk that it is stuck at
        self._ended: DanubeError | None = None  # by the broker, before its answer was handled

    # -- for subclasses ------------------------------------------------------------------------------------------------

    def opening(self, channel: int) -> Request[Opened]:
        """The request that opens the channel under this number. It resumes `mark`."""
        raise NotImplementedError

    def opened(self, answer: Opened) -> None:
        """Called when the channel is open."""
        raise NotImplementedError

    def interrupted(self, error: DanubeError) -> None:
        """Called when the channel broke and will be opened again."""
        raise NotImplementedError

    def given_up(self, error: DanubeError) -> None:
        """Called when the channel is closed for good, because trying again does not help."""
        raise NotImplementedError

    def may_recover(self, error: DanubeError) -> bool:
        """Whether to try again after this error, at once or after an operator has repaired something."""
        return error.retriable

    def retry_later(self) -> None:
        """Tries again in the background to open the channel."""
        self._attempts += 1
        self._reopen()

    # -- opening -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        connection = await self.client.connection()
        number = connection.add_channel(self)
        self._opening, self._ended = True, None
        try:
            answer = await connection.request(self.opening(number))
        except BrokerProtocolError:  # the broker has opened it, but says so in a way that is not understood
            self.release(connection, number)
            raise
        except DanubeError:  # refused, or the connection is lost
            connection.remove_channel(number)
            raise
        except BaseException:  # cancelled, while the broker may be opening it
            self.release(connection, number)
            raise
        finally:
            self._opening = False
        if self.closed:
            self.release(connection, number)
            raise ClientClosed("closed while being opened")
        if connection.error is not None:
            raise type(connection.error)(*connection.error.args)
        if self._ended is not None:
            raise copy_of(self._ended)
        self.number, self.connection = number, connection
        self.mark = answer.resume
        self.opened(answer)

    def ended(self, error: DanubeError) -> None:
        """The broker closed the channel: for good if a retry does not help, lest a deleted topic is created again."""
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
        """Replaces the channel after an error, to learn from the broker where to continue."""
        if self.connection is not None:
            connection, self.connection = self.connection, None
            self.release(connection, self.number, returning=True)
            self._attempts += 1
            self.reason = error
            self._report_full_disk(error)
            self.interrupted(error)
            self._reopen()

    def on_success(self) -> None:
        self._attempts = 0
        self._disk_full_reported = False

    def _report_full_disk(self, error: DanubeError) -> None:
        """Reports a full disk once: the client keeps trying, which may take long."""
        if isinstance(error, DiskFull) and not self._disk_full_reported:
            self._disk_full_reported = True
            self.client.emit("disk_full", error)

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
                    if not isinstance(error, ConnectionLost):  # the next connection has its own delay
                        self._attempts += 1
                    self.reason = error
                    self._report_full_disk(error)
                    if not self.may_recover(error) and not self.closed:
                        self.closed = True
                        self.given_up(error)
                        return
                else:
                    return
        finally:
            self._task = None

    def close_at_once(self) -> None:
        """Closes the channel without waiting for the broker's answer."""
        connection = self._detach()
        if connection is not None:
            self.release(connection, self.number)

    def _detach(self) -> Connection | None:
        self.closed = True
        if self._task is not None and not self._opening:  # otherwise it closes the channel when the broker answers
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
            await self.client.within("close", connection.request(CloseChannel(channel=self.number)))
        except DanubeError:
            pass  # already gone
        except BaseException:  # interrupted, perhaps before the request was sent
            connection.request_nowait(CloseChannel(channel=self.number))
            raise
        finally:
            connection.remove_channel(self.number)

    def detach_after_fork(self, error: DanubeError) -> None:
        """After a fork, in the child: the channel and its connection belong to the parent."""
        self.connection, self.closed, self.reason = None, True, error

    def release(self, connection: Connection, number: int, *, returning: bool = False) -> None:
        """Closes the channel in the background. With `returning`, the broker keeps our state for the next one."""
        connection.remove_channel(number)
        connection.request_nowait(CloseChannel(channel=number, returning=returning))
