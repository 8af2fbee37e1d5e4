"""Records that messages are done though no consumer acknowledged them: gaps, lost, filtered and dead-lettered ones.

Owned by its subscription. While the state log takes no records it tries again: what is recorded here was passed over
or published elsewhere already, so that the message itself must not be dealt with a second time.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence

from pydanube.base.errors import DanubeError
from pydanube.broker.subscription.lifetime import CLOSED, Lifetime
from pydanube.broker.subscription.read_failures import RETRY_SECONDS
from pydanube.broker.work.rare_warnings import RareWarnings
from pydanube.topic.cursor import Range
from pydanube.topic.records import Cause

Ack = Callable[[int, Sequence[Range], Cause], Future[None]]  # generation, offsets, why they are done


class Discards:
    """`ack` records them, as it does for consumers."""

    __slots__ = ("_ack", "_lifetime", "_warnings")

    def __init__(self, ack: Ack, lifetime: Lifetime, warnings: RareWarnings) -> None:
        self._ack = ack
        self._lifetime = lifetime
        self._warnings = warnings

    def record(self, generation: int, done: Range, cause: Cause) -> None:
        """Now, or as soon as the log takes it."""
        try:
            self._ack(generation, [done], cause)
        except DanubeError as error:
            self._warnings.warn("could not yet record", done, error)
            self._lifetime.start(self._record_later(generation, done, cause))

    async def _record_later(self, generation: int, done: Range, cause: Cause) -> None:
        await asyncio.sleep(RETRY_SECONDS)
        if self._lifetime.state is not CLOSED:
            self.record(generation, done, cause)
