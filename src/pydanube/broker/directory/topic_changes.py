"""The topics that were recently created, changed or deleted, for clients that wait for changes instead of polling.

It watches the metadata and remembers the latest changes by revision, so that a client that lost its connection for a
while continues where it was. A client that was away for longer has to list all topics again.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections import deque
from itertools import takewhile
from typing import NamedTuple

from pydanube.base.errors import TopicBusy, WatchLagged
from pydanube.base.limits import TOPIC_CHANGES_KEPT, TOPIC_CHANGES_LISTED_MAX, TOPIC_WATCHERS_MAX
from pydanube.metadata.tables import TOPICS, topic_name
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.futures import cancel_all
from pydanube.storage.guard import Guard
from pydanube.storage.metadata.table import Table, TableWatch
from pydanube.topic.record import TopicRecord

_ALL = ""  # the key of clients that wait for changes in any namespace; not a valid name of one
Namespaces = frozenset[str] | None  # None: all of them


class Changes(NamedTuple):
    """The topics that changed up to a revision. With `missed`, any topic may have changed, and `topics` is empty."""

    revision: int
    topics: list[str]
    missed: bool = False


class _Change(NamedTuple):
    revision: int
    namespace: str
    topic: str  # its full name


class TopicChanges:
    """Owned by the broker's loop. It starts to watch the metadata when a client first asks."""

    def __init__(self, store: MetadataStore) -> None:
        self._table = Table(store, TOPICS)
        self._recent: deque[_Change] = deque()
        self._since = 0  # `_recent` has every change after this revision
        self._noted = 0  # up to this one
        self._waiting: dict[str, dict[Future[None], None]] = {}  # by namespace
        self._waiters = 0
        self.guard = Guard("watching for changes of topics")
        self._lagged = False
        self._watching: Task[None] | None = None

    async def after(
        self, namespaces: Namespaces, revision: int | None, seconds: float, *, replaced: Future[None] | None = None
    ) -> Changes:
        """The changes after a revision, as soon as there are any, or none when the time is over.

        Without a revision, returns the current one at once. `replaced` is done when the client has asked again and no
        longer waits for this answer.
        """
        if self._watching is None or self._watching.done():
            watch = self._begin()
            self._watching = asyncio.get_running_loop().create_task(self._watch(watch))
        if revision is None:
            return Changes(self._noted, [])
        found = self._find(namespaces, revision)
        if found.topics or found.missed:
            return found
        if self._waiters >= TOPIC_WATCHERS_MAX:
            raise TopicBusy(f"{TOPIC_WATCHERS_MAX} requests are already waiting for topic changes")
        await self._wait(namespaces, seconds, replaced)
        return self._find(namespaces, revision)

    def _find(self, namespaces: Namespaces, revision: int) -> Changes:
        if not self._since <= revision <= self._noted:
            return Changes(self._noted, [], missed=True)
        newer = takewhile(lambda change: change.revision > revision, reversed(self._recent))
        topics = sorted({change.topic for change in newer if namespaces is None or change.namespace in namespaces})
        if len(topics) > TOPIC_CHANGES_LISTED_MAX:
            return Changes(self._noted, [], missed=True)
        return Changes(self._noted, topics)

    async def _wait(self, namespaces: Namespaces, seconds: float, replaced: Future[None] | None) -> None:
        waiter: Future[None] = asyncio.get_running_loop().create_future()
        keys = [_ALL] if namespaces is None else list(namespaces)
        for namespace in keys:
            self._waiting.setdefault(namespace, {})[waiter] = None
        self._waiters += 1
        try:
            ends = [waiter] if replaced is None else [waiter, replaced]
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiters -= 1
            for namespace in keys:
                waiting = self._waiting.get(namespace, {})
                waiting.pop(waiter, None)
                if not waiting:
                    self._waiting.pop(namespace, None)

    # -- watching ------------------------------------------------------------------------------------------------------

    def _begin(self) -> TableWatch[TopicRecord]:
        watch = self._table.watch()
        self._since = self._noted = self._table.store.revision
        self._recent.clear()
        return watch

    async def _watch(self, watch: TableWatch[TopicRecord]) -> None:
        """Runs until the store is closed. After a failure it starts over, and waiting clients list all topics again."""
        while not await self.guard.over(self._follow(watch)) or self._lagged:
            self._lagged = False
            watch.close()
            watch = self._begin()
            for namespace in list(self._waiting):
                self._wake(namespace)

    async def _follow(self, watch: TableWatch[TopicRecord]) -> None:
        try:
            async for change in watch:
                name = topic_name(change.key)
                self._note(_Change(change.revision, name.namespace, str(name)))
        except WatchLagged:
            self._lagged = True

    def _note(self, change: _Change) -> None:
        self._recent.append(change)
        self._noted = change.revision
        if len(self._recent) > TOPIC_CHANGES_KEPT:
            self._since = self._recent.popleft().revision
        self._wake(change.namespace)
        self._wake(_ALL)

    def _wake(self, namespace: str) -> None:
        for waiter in self._waiting.pop(namespace, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def close(self) -> None:
        for namespace in list(self._waiting):
            self._wake(namespace)
        await cancel_all([self._watching])
