"""Does what a subscription's policy says with messages whose retries are exhausted: publishes or drops them.

Owned by its subscription. It never gives up a message without a record of it, and publishes a dead letter once: if
only its record cannot be written, only that is tried again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydanube.broker.state.log import StateLog
from pydanube.broker.subscription.damage_notices import in_words
from pydanube.broker.subscription.discards import Ack, Discards
from pydanube.broker.subscription.lifetime import CLOSED, Lifetime
from pydanube.broker.subscription.reading_window import ReadingWindow
from pydanube.broker.work.rare_warnings import RareWarnings
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Poisoned
from pydanube.dispatch.policy import PoisonPolicy
from pydanube.topic.records import Cause
from pydanube.topic.state import Subscription
from pydanube.wire.batch import Batch

DeadLetter = Callable[[Batch, Poisoned, str], Awaitable[None]]  # batch, which and why, subscription; until durable


class PoisonHandler:
    """What fails here is left to the engine, which asks again later."""

    __slots__ = ("_ack", "_dead_letter", "_discards", "_engine", "_known", "_lifetime", "_log", "_warnings", "_window")

    def __init__(
        self,
        known: Subscription,
        engine: Engine[Any],
        log: StateLog,
        window: ReadingWindow,
        discards: Discards,
        dead_letter: DeadLetter,
        ack: Ack,
        lifetime: Lifetime,
        warnings: RareWarnings,
    ) -> None:
        self._known = known
        self._engine = engine
        self._log = log
        self._window = window
        self._discards = discards
        self._dead_letter = dead_letter
        self._ack = ack
        self._lifetime = lifetime
        self._warnings = warnings

    async def give_up(self, poisoned: Poisoned, generation: int) -> None:
        """Until it is done, or the engine knows that it failed. After a seek it is no longer wanted."""
        try:
            if poisoned.policy is PoisonPolicy.DEAD_LETTER:
                await self._publish(poisoned, generation)
            elif self._is_current(generation):
                await self._ack(generation, [(poisoned.offset, poisoned.offset)], Cause.POISON)
        except Exception as error:  # whatever it is, the message stays and is tried again
            self._warnings.warn("could not set aside offset", poisoned.offset, error)
            if self._is_current(generation):
                self._engine.poison_failed(poisoned.offset, self._lifetime.now, in_words(error))
                self._lifetime.wake()

    async def _publish(self, poisoned: Poisoned, generation: int) -> None:
        done = poisoned.offset, poisoned.offset
        self._log.check()  # a letter is published only if its publication can be recorded
        if self._window.pass_lost(poisoned.offset) > poisoned.offset:
            return
        batch = await self._window.read_at(poisoned.offset)
        if generation != self._known.cursor.generation:
            return
        if batch.base_offset > poisoned.offset:  # the topic only buffered the message, and lost it
            self._discards.record(generation, done, Cause.UNUSED)
            return
        await self._dead_letter(batch, poisoned, self._known.name)
        if self._lifetime.state is not CLOSED:
            self._discards.record(generation, done, Cause.DEAD_LETTERED)

    def _is_current(self, generation: int) -> bool:
        return self._lifetime.state is not CLOSED and generation == self._known.cursor.generation
