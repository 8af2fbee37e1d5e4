"""When sessions end: kept where ends are decided, which is the leader, and begun again by each leader (§39)."""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections.abc import Callable


class SessionTimers:
    """`expire` is called with a session that was not kept alive in time."""

    def __init__(self, sessions: dict[int, float], expire: Callable[[int], None]) -> None:
        """Every session has its whole time, because renewals of an earlier leader are not known."""
        self._loop = asyncio.get_running_loop()
        self._expire = expire
        self._timers: dict[int, TimerHandle] = {}
        for session, seconds in sessions.items():
            self.renew(session, seconds)

    def renew(self, session: int, seconds: float) -> None:
        self.drop(session)
        self._timers[session] = self._loop.call_later(seconds, self._expire, session)

    def drop(self, session: int) -> None:
        found = self._timers.pop(session, None)
        if found is not None:
            found.cancel()

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
