"""What a client hears of topics that are made, changed or deleted: the broker says so, and nobody asks repeatedly.

One request waits at the broker, for all namespaces that somebody follows. It names the revision that was heard of last,
so a lost connection or a restart of the broker leaves no gap.
"""

from __future__ import annotations

import asyncio
from asyncio import Event, Task, TimerHandle
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import ClientClosed, DanubeError
from pydanube.base.limits import TOPIC_CHANGES_TOLD_MAX, TOPIC_WATCH_NAMESPACES_MAX, TOPIC_WATCH_SECONDS_MAX
from pydanube.base.names import parse_topic
from pydanube.base.retry import Backoff

if TYPE_CHECKING:
    from pydanube.client.client import Client

RETRY = Backoff(1.0, 30.0)  # after a failure: of the broker's answer, or of what was done with it
GATHER_SECONDS = 0.02  # in which changes come together, so that many at once are looked at once
Names = Collection[str] | None  # topics that changed; None: any may have
Failed = dict[str, DanubeError]  # topics, and why
Reply = dict[str, Any]
Look = Callable[[Names], Awaitable[Failed | None]]


class News:
    """What one listener has not looked at yet."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._all = False
        self._there = Event()

    def add(self, names: Names) -> None:
        if names is not None:
            self._names.update(names)
        self._all = self._all or names is None or len(self._names) > TOPIC_CHANGES_TOLD_MAX
        self._there.set()

    async def take(self) -> Names:
        await self._there.wait()
        names: Names = None if self._all else self._names
        self._names, self._all = set(), False
        self._there.clear()
        return names


class TopicWatches:
    """Of one client: the namespaces that somebody follows, for all of which one request waits."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._listeners: dict[str, dict[News, None]] = {}  # by namespace
        self._revision: int | None = None  # what happened up to it is known
        self._asking: Task[Reply] | None = None
        self._task: Task[None] | None = None

    @property
    def namespaces(self) -> list[str]:
        return sorted(self._listeners)

    def join(self, namespace: str, news: News) -> None:
        if namespace not in self._listeners and self._asking is not None:
            self._asking.cancel()  # and asked again, with this one
        self._listeners.setdefault(namespace, {})[news] = None
        if self._revision is not None:
            news.add(None)
        if self._task is None:
            self._task = self._client.loop.create_task(self._watch())

    def leave(self, namespace: str, news: News) -> None:
        listeners = self._listeners[namespace]
        del listeners[news]
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
                    self._tell(found)
                    if found["topics"]:
                        await asyncio.sleep(GATHER_SECONDS)
        except ClientClosed:
            return

    async def _ask(self) -> Reply | None:
        """None if it failed, or if somebody has joined meanwhile."""
        seconds = min(TOPIC_WATCH_SECONDS_MAX, self._client.request_timeout / 2)
        fields: dict[str, Any] = {"milliseconds": int(seconds * 1_000)}
        if len(self._listeners) <= TOPIC_WATCH_NAMESPACES_MAX:
            fields["namespaces"] = self.namespaces
        if self._revision is not None:
            fields["revision"] = self._revision
        self._asking = asking = self._client.loop.create_task(self._client.ask("topic.watch", fields))
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())  # heard of, also if we are gone
        try:
            await asyncio.wait([asking])
        finally:
            asking.cancel()  # if we are
            self._asking = None
        if asking.cancelled():
            return None
        error = asking.exception()
        if error is None:
            return asking.result()
        if not isinstance(error, DanubeError) or isinstance(error, ClientClosed):
            raise error
        await asyncio.sleep(RETRY.first)  # the client says itself that its connection is lost
        return None

    def _tell(self, found: Reply) -> None:
        unknown, self._revision = self._revision is None or bool(found["missed"]), int(found["revision"])
        changed: dict[str, list[str]] = {}
        for name in found["topics"]:
            changed.setdefault(parse_topic(name).namespace, []).append(name)
        for namespace in self._listeners if unknown else changed:
            for news in self._listeners.get(namespace, ()):
                news.add(None if unknown else changed[namespace])


class Retries:
    """Of topics that could not be used: each by itself, after twice as long as the last time."""

    def __init__(self, client: Client, news: News) -> None:
        self._client, self._news = client, news
        self._waiting: dict[str, tuple[int, TimerHandle]] = {}  # failures in a row, and the next attempt

    def plan(self, failed: Failed, looked: Names) -> None:
        for name in [each for each in self._waiting if each not in failed and (looked is None or each in looked)]:
            self._waiting.pop(name)[1].cancel()
        for name, error in failed.items():
            self._client.say("refresh_failed", error)
            failures = 1
            if name in self._waiting:
                before, timer = self._waiting[name]
                timer.cancel()
                failures += before
            self._waiting[name] = failures, self._client.loop.call_later(RETRY.after(failures), self._news.add, [name])

    def cancel(self) -> None:
        for _, timer in self._waiting.values():
            timer.cancel()


async def follow(client: Client, namespaces: Iterable[str], look: Look, news: News) -> None:
    """Calls `look` with topics of these namespaces that have changed, until it is cancelled.

    At first, and after the broker could not say which, with None. What fails is said, and looked at again; a topic that
    fails holds up no other, and is tried less and less often. The caller may add to `news` what it wants to look at.
    """
    watched = sorted(set(namespaces))
    retries = Retries(client, news)
    for namespace in watched:
        client.topic_watches.join(namespace, news)
    try:
        while True:
            names = await news.take()
            try:
                retries.plan(await look(names) or {}, names)
            except DanubeError as error:
                client.say("refresh_failed", error)
                news.add(names)
                await asyncio.sleep(RETRY.first)
    finally:
        retries.cancel()
        for namespace in watched:
            client.topic_watches.leave(namespace, news)


async def follow_topic(client: Client, topic: str, look: Callable[[], Awaitable[None]]) -> None:
    """Calls `look` at first and whenever the topic has changed, until it is cancelled."""
    whole = parse_topic(topic).whole

    async def look_if_changed(changed: Names) -> None:
        if changed is None or str(whole) in changed:
            await look()

    await follow(client, [whole.namespace], look_if_changed, News())
