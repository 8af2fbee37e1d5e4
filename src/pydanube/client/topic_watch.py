"""Notices of topics that are created, changed or deleted, from the broker, without polling.

One request waits at the broker, for all namespaces that a client follows. It names the last known revision, so a lost
connection or a restart of the broker leaves no gap.
"""

from __future__ import annotations

import asyncio
from asyncio import Event, Task, TimerHandle
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING

from pydanube.base.errors import ClientClosed, DanubeError
from pydanube.base.limits import TOPIC_CHANGES_LISTED_MAX, TOPIC_WATCH_NAMESPACES_MAX, TOPIC_WATCH_SECONDS_MAX
from pydanube.base.names import parse_topic
from pydanube.base.retry import Backoff
from pydanube.operations import topics

if TYPE_CHECKING:
    from pydanube.client.client import Client

RETRY = Backoff(1.0, 30.0)  # after a failed request, or after a change could not be handled
GATHER_SECONDS = 0.02  # to collect changes, so that many are handled together
TopicNames = Collection[str] | None  # changed topics; None if any may have changed
FailedTopics = dict[str, DanubeError]  # topics and their errors
Look = Callable[[TopicNames], Awaitable[FailedTopics | None]]


class TopicChanges:
    """The changes that one listener has not handled yet."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._all = False
        self._available = Event()

    def add(self, names: TopicNames) -> None:
        if names is not None:
            self._names.update(names)
        self._all = self._all or names is None or len(self._names) > TOPIC_CHANGES_LISTED_MAX
        self._available.set()

    async def take(self) -> TopicNames:
        await self._available.wait()
        names: TopicNames = None if self._all else self._names
        self._names, self._all = set(), False
        self._available.clear()
        return names


class TopicWatches:
    """The namespaces that a client follows, with one request for all of them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._listeners: dict[str, dict[TopicChanges, None]] = {}  # by namespace
        self._revision: int | None = None  # changes up to it are known
        self._asking: Task[topics.TopicChanges] | None = None
        self._task: Task[None] | None = None

    @property
    def namespaces(self) -> list[str]:
        return sorted(self._listeners)

    def join(self, namespace: str, changes: TopicChanges) -> None:
        if namespace not in self._listeners and self._asking is not None:
            self._asking.cancel()  # it is sent again, with the new namespace
        self._listeners.setdefault(namespace, {})[changes] = None
        if self._revision is not None:
            changes.add(None)
        if self._task is None:
            self._task = self._client.loop.create_task(self._watch())

    def leave(self, namespace: str, changes: TopicChanges) -> None:
        listeners = self._listeners[namespace]
        del listeners[changes]
        if not listeners:
            del self._listeners[namespace]
        if not self._listeners and self._task is not None:
            self._task.cancel()
            self._task = self._revision = None

    async def _watch(self) -> None:
        try:
            while True:
                found = await self._ask()
                if found is not None:
                    self._notify(found)
                    if found.topics:
                        await asyncio.sleep(GATHER_SECONDS)
        except ClientClosed:
            return

    async def _ask(self) -> topics.TopicChanges | None:
        """Returns the changes; None if the request failed or a listener joined meanwhile."""
        seconds = min(TOPIC_WATCH_SECONDS_MAX, self._client.request_timeout / 2)
        request = topics.WatchTopics(
            namespaces=self.namespaces if len(self._listeners) <= TOPIC_WATCH_NAMESPACES_MAX else None,
            revision=self._revision,
            milliseconds=int(seconds * 1_000),
        )
        self._asking = asking = self._client.loop.create_task(self._client.ask(request))
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())  # marks it as retrieved
        try:
            await asyncio.wait([asking])
        finally:
            asking.cancel()
            self._asking = None
        if asking.cancelled():
            return None
        error = asking.exception()
        if error is None:
            return asking.result()
        if not isinstance(error, DanubeError) or isinstance(error, ClientClosed):
            raise error
        await asyncio.sleep(RETRY.first)  # the client itself reports a lost connection
        return None

    def _notify(self, found: topics.TopicChanges) -> None:
        unknown, self._revision = self._revision is None or found.missed, found.revision
        changed: dict[str, list[str]] = {}
        for name in found.topics:
            changed.setdefault(parse_topic(name).namespace, []).append(name)
        for namespace in self._listeners if unknown else changed:
            for changes in self._listeners.get(namespace, ()):
                changes.add(None if unknown else changed[namespace])


class Retries:
    """Retries topics that failed, each with its own delay, which doubles every time."""

    def __init__(self, client: Client, changes: TopicChanges) -> None:
        self._client, self._changes = client, changes
        self._waiting: dict[str, tuple[int, TimerHandle]] = {}  # failures in a row, and the next attempt

    def plan(self, failed: FailedTopics, looked: TopicNames) -> None:
        for name in [each for each in self._waiting if each not in failed and (looked is None or each in looked)]:
            self._waiting.pop(name)[1].cancel()
        for name, error in failed.items():
            self._client.emit("refresh_failed", error)
            failures = 1
            if name in self._waiting:
                before, timer = self._waiting[name]
                timer.cancel()
                failures += before
            retry = self._client.loop.call_later(RETRY.after(failures), self._changes.add, [name])
            self._waiting[name] = failures, retry

    def cancel(self) -> None:
        for _, timer in self._waiting.values():
            timer.cancel()


async def follow(client: Client, namespaces: Iterable[str], look: Look, changes: TopicChanges) -> None:
    """Calls `look` with the changed topics of these namespaces, until it is cancelled.

    The argument is None at first, and when the broker does not know which topics changed. Failures are reported and
    tried again; a topic that fails does not delay others, and is tried less and less often. The caller may add topics
    to `changes` itself.
    """
    watched = sorted(set(namespaces))
    retries = Retries(client, changes)
    for namespace in watched:
        client.topic_watches.join(namespace, changes)
    try:
        while True:
            names = await changes.take()
            try:
                retries.plan(await look(names) or {}, names)
            except DanubeError as error:
                client.emit("refresh_failed", error)
                changes.add(names)
                await asyncio.sleep(RETRY.first)
    finally:
        retries.cancel()
        for namespace in watched:
            client.topic_watches.leave(namespace, changes)


async def follow_topic(client: Client, topic: str, look: Callable[[], Awaitable[None]]) -> None:
    """Calls `look` at first and whenever the topic changes, until it is cancelled."""
    whole = parse_topic(topic).whole

    async def look_if_changed(changed: TopicNames) -> None:
        if changed is None or str(whole) in changed:
            await look()

    await follow(client, [whole.namespace], look_if_changed, TopicChanges())
