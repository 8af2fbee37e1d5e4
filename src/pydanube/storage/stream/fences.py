"""The streams of a topic wait here for each other: none of them is read before all of them are fenced (§40).

Otherwise the old owner could still write to one stream while the new owner already reads another, and the two would be
of different moments: what one says was deleted because of the other might never be found there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Fences:
    """Used for one takeover. Later recoveries by the same owner find everything fenced, and do not wait."""

    def __init__(self, streams: Iterable[str]) -> None:
        """`streams` have a ledger that their earlier owner may still write to."""
        self._left = dict.fromkeys(streams)
        self._done = asyncio.Event()

    async def fenced(self, stream: str) -> None:
        """Called when the stream is fenced; returns when all are."""
        self._left.pop(stream, None)
        if not self._left:
            self._done.set()
        await self._done.wait()
