"""What deleted topics leave in storage. It is removed at once; what cannot be removed is tried again later.

Object storage may be slow or hang, so it is waited for only briefly.

The topic's record is deleted first. A stream whose topic has no record is therefore a leftover, even if it is found
only after a crash in the middle of a deletion.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Sequence
from functools import partial
from typing import Any

from pydanube.base.errors import DanubeError
from pydanube.base.limits import TOPICS_OPENING_MAX
from pydanube.broker.cold.tiering import Tiering
from pydanube.broker.directory.directory import Directory
from pydanube.broker.topic.dependencies import TopicDependencies
from pydanube.storage.futures import cancel_all
from pydanube.storage.stream.removal import remove_stream
from pydanube.stream.assignment import state_stream
from pydanube.topic.record import TopicRecord, topic_of_stream

log = logging.getLogger(__name__)
PATIENCE_SECONDS = 2.0
OPENING_SECONDS = 1.0  # how long to wait for a topic that was being opened when it was deleted


class Leftovers:
    """Owned by the broker's loop. Never touches a stream whose topic exists."""

    def __init__(self, dependencies: TopicDependencies, tiering: Tiering | None) -> None:
        self._dependencies = dependencies
        self._tiering = tiering
        self._streams: dict[str, None] = {}
        self._removing: dict[str, Task[None]] = {}
        self._turns = asyncio.Semaphore(TOPICS_OPENING_MAX)

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, record: TopicRecord) -> None:
        """Adds all streams of a topic that was deleted and is not open. One that stores nothing has only assignments,
        of which the deletion may have left some."""
        for name in record.partition_names():
            stream = record.stream(name.partition)
            self._streams[stream] = None
            if record.reliable:
                self._streams[state_stream(stream)] = None

    async def find(self, directory: Directory) -> None:
        """Finds what an interrupted deletion has left."""
        streams = await self._dependencies.catalog.streams()
        topics = directory.ids()  # read after the streams, because a topic's record exists before its first stream
        for stream in streams:
            topic = topic_of_stream(stream)
            if topic is not None and topic not in topics:
                self._streams[stream] = None

    async def sweep(self) -> None:
        """Starts to remove everything that is not being removed yet, and waits for it briefly."""
        self.begin()
        if self._removing:
            await asyncio.wait(list(self._removing.values()), timeout=PATIENCE_SECONDS)

    def begin(self) -> None:
        for stream in self._streams:
            if stream not in self._removing:
                task = self._removing[stream] = asyncio.get_running_loop().create_task(self._remove(stream))
                task.add_done_callback(partial(self._removed, stream))

    def _removed(self, stream: str, task: Task[None]) -> None:
        self._removing.pop(stream, None)

    async def close(self) -> None:
        await cancel_all(self._removing.values())

    async def _remove(self, stream: str) -> None:
        dependencies = self._dependencies
        if self._tiering is not None:
            await self._tiering.finished(stream)  # otherwise it could create an object after the last was deleted
        async with self._turns:
            try:
                await remove_stream(stream, dependencies.catalog, dependencies.nodes, dependencies.cold)
            except DanubeError as error:
                log.warning("could not delete %s of a deleted topic yet: %s", stream, error)
                return
        self._streams.pop(stream, None)


async def cut_off(opening: Sequence[Task[Any]]) -> None:
    """Ends attempts to open a deleted topic: each notices the deletion itself, unless it waits for a disk or a node."""
    _, hanging = await asyncio.wait(opening, timeout=OPENING_SECONDS)
    await cancel_all(hanging)
