"""What a client hears of topics that are made, changed or deleted: the broker says so, and nobody asks again and again.

One request waits at the broker for each namespace that somebody follows. It names the revision that was heard of last,
so a lost connection or a restart of the broker leaves no gap.
"""

from __future__ import annotations

import asyncio
from asyncio import Event, Task, TimerHandle
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING

from pydanube.base.errors import ClientClosed, DanubeError
from pydanube.base.limits import TOPIC_CHANGES_TOLD_MAX, TOPIC_WATCH_SECONDS_MAX

if TYPE_CHECKING:
    from pydanube.client.client import Client

RETRY_SECONDS = 1.0  # after a failure: of the broker's answer, or of what was done with it
RETRY_SECONDS_MAX = 30.0  # of a topic that failed again and again
GATHER_SECONDS = 0.02  # in which changes come together, so that many at once are looked at once
Names = Collection[str] | None  # topics that changed; None: any may have
Failed = dict[str, DanubeError]  # topics, and why
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
    """Of one client: those of its namespaces that somebody follows."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._listeners: dict[str, dict[News, None]] = {}
        self._tasks: dict[str, Task[None]] = {}

    def join(self, namespace: str, news: News) -> None:
        self._listeners.setdefault(namespace, {})[news] = None
        if namespace not in self._tasks:
            self._tasks[namespace] = self._client.loop.create_task(self._watch(namespace))

    def leave(self, namespace: str, news: News) -> None:
        listeners = self._listeners[namespace]
        del listeners[news]
        if not listeners:
            del self._listeners[namespace]
            self._tasks.pop(namespace).cancel()

    async def _watch(self, namespace: str) -> None:
        seconds = min(TOPIC_WATCH_SECONDS_MAX, self._client.request_timeout / 2)
        fields: dict[str, str | int] = {"namespace": namespace, "milliseconds": int(seconds * 1_000)}
        while True:
            try:
                found = await self._client.ask("topic.watch", fields)
            except ClientClosed:
                return
            except DanubeError:  # the client says itself that its connection is lost
                await asyncio.sleep(RETRY_SECONDS)
                continue
            unknown = "revision" not in fields or bool(found["missed"])
            fields["revision"] = int(found["revision"])
            names: Names = None if unknown else found["topics"]
            if names is None or names:
                for news in self._listeners.get(namespace, ()):
                    news.add(names)
                await asyncio.sleep(GATHER_SECONDS)


class Retries:
    """Of topics that could not be used: each by itself, after twice as long as the last time."""

    def __init__(self, client: Client, news: News) -> None:
        self._client, self._news = client, news
        self._waiting: dict[str, tuple[float, TimerHandle]] = {}  # seconds, until when

    def plan(self, failed: Failed, looked: Names) -> None:
        for name in [each for each in self._waiting if each not in failed and (looked is None or each in looked)]:
            self._waiting.pop(name)[1].cancel()
        for name, error in failed.items():
            self._client.say("refresh_failed", error)
            seconds = RETRY_SECONDS
            if name in self._waiting:
                last, timer = self._waiting[name]
                timer.cancel()
                seconds = min(2 * last, RETRY_SECONDS_MAX)
            self._waiting[name] = seconds, self._client.loop.call_later(seconds, self._news.add, [name])

    def cancel(self) -> None:
        for _, timer in self._waiting.values():
            timer.cancel()


async def follow(client: Client, namespaces: Iterable[str], look: Look) -> None:
    """Calls `look` with topics of these namespaces that have changed, until it is cancelled.

    At first, and after the broker could not say which, with None. What fails is said, and looked at again; a topic that
    fails holds up no other, and is tried less and less often.
    """
    news, watched = News(), sorted(set(namespaces))
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
                await asyncio.sleep(RETRY_SECONDS)
    finally:
        retries.cancel()
        for namespace in watched:
            client.topic_watches.leave(namespace, news)
