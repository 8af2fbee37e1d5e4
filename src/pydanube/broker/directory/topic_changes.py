"""Which topics were made, changed or deleted lately, for those who wait to hear of it instead of asking all the time.

It watches the metadata and remembers the last changes by their revision, so that whoever was away for a while, or lost
its connection, continues where it was. Who was away for longer is told to look at everything.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections import deque
from itertools import takewhile
from typing import NamedTuple

from pydanube.base.errors import TopicBusy, WatchLagged
from pydanube.base.limits import TOPIC_CHANGES_KEPT, TOPIC_CHANGES_TOLD_MAX, TOPIC_WATCHERS_MAX
from pydanube.ports.metadata import MetadataStore, Watch
from pydanube.storage.guard import Guard

_TOPICS = "topics/"
_EVERY = ""  # among those who wait: for changes anywhere; not the name of a namespace
Followed = frozenset[str] | None  # namespaces; None: all of them


class Changes(NamedTuple):
    """Of the topics of some namespaces up to a revision. `missed`: any may have changed, whatever `topics` says."""

    revision: int
    topics: list[str]
    missed: bool = False


class _Change(NamedTuple):
    revision: int
    namespace: str
    topic: str  # as a whole name


class TopicChanges:
    """Owned by the broker's loop. It begins to watch when somebody first asks."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._recent: deque[_Change] = deque()
        self._since = 0  # every change after this revision is among the recent ones
        self._noted = 0  # up to here
        self._waiting: dict[str, dict[Future[None], None]] = {}  # by namespace
        self._waiters = 0
        self.guard = Guard("watching for changes of topics")
        self._lagged = False
        self._watching: Task[None] | None = None

    async def after(
        self, namespaces: Followed, revision: int | None, seconds: float, *, replaced: Future[None] | None = None
    ) -> Changes:
        """Changes after a revision, as soon as there are some, or none after so long. Without one: where we are now.

        `replaced` is done when the caller has asked again, and does not wait for this answer any more.
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

    def _find(self, namespaces: Followed, revision: int) -> Changes:
        if not self._since <= revision <= self._noted:
            return Changes(self._noted, [], missed=True)
        newer = takewhile(lambda change: change.revision > revision, reversed(self._recent))
        topics = sorted({change.topic for change in newer if namespaces is None or change.namespace in namespaces})
        if len(topics) > TOPIC_CHANGES_TOLD_MAX:
            return Changes(self._noted, [], missed=True)
        return Changes(self._noted, topics)

    async def _wait(self, namespaces: Followed, seconds: float, replaced: Future[None] | None) -> None:
        waiter: Future[None] = asyncio.get_running_loop().create_future()
        places = [_EVERY] if namespaces is None else list(namespaces)
        for namespace in places:
            self._waiting.setdefault(namespace, {})[waiter] = None
        self._waiters += 1
        try:
            ends = [waiter] if replaced is None else [waiter, replaced]
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiters -= 1
            for namespace in places:
                waiting = self._waiting.get(namespace, {})
                waiting.pop(waiter, None)
                if not waiting:
                    self._waiting.pop(namespace, None)

    # -- watching ------------------------------------------------------------------------------------------------------

    def _begin(self) -> Watch:
        watch = self._store.watch(_TOPICS)
        self._since = self._noted = self._store.revision
        self._recent.clear()
        return watch

    async def _watch(self, watch: Watch) -> None:
        """Until the store is closed. After anything else it starts over, and who waits looks at everything."""
        while not await self.guard.over(self._follow(watch)) or self._lagged:
            self._lagged = False
            watch.close()
            watch = self._begin()
            for namespace in list(self._waiting):
                self._wake(namespace)

    async def _follow(self, watch: Watch) -> None:
        try:
            async for change in watch:
                _, namespace, name = change.key.split("/")
                self._note(_Change(change.revision, namespace, f"/{namespace}/{name}"))
        except WatchLagged:
            self._lagged = True

    def _note(self, change: _Change) -> None:
        self._recent.append(change)
        self._noted = change.revision
        if len(self._recent) > TOPIC_CHANGES_KEPT:
            self._since = self._recent.popleft().revision
        self._wake(change.namespace)
        self._wake(_EVERY)

    def _wake(self, namespace: str) -> None:
        for waiter in self._waiting.pop(namespace, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def close(self) -> None:
        for namespace in list(self._waiting):
            self._wake(namespace)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
