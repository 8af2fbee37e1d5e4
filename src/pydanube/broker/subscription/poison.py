"""Applies a subscription's poison policy to messages whose retries are exhausted: publishes or drops them.

Owned by its subscription. It never gives up a message without recording it, and publishes a dead letter once: if only
its record cannot be written, only that is tried again.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence

from pydanube.broker.subscription.core import SubscriptionCore
from pydanube.broker.subscription.lifetime import CLOSED
from pydanube.broker.subscription.read_failures import in_words
from pydanube.broker.subscription.reading_window import Discard, ReadingWindow
from pydanube.dispatch.events import Poisoned
from pydanube.dispatch.policy import PoisonPolicy
from pydanube.topic.cursor import Range
from pydanube.topic.records import Cause
from pydanube.wire.batch import Batch

DeadLetter = Callable[[Batch, Poisoned, str], Awaitable[None]]  # batch, message and reason, subscription; until durable
Ack = Callable[[int, Sequence[Range], Cause], Future[None]]  # generation, offsets, why they are done


class PoisonHandler:
    """Leaves failures to the engine, which asks again later."""

    __slots__ = ("_ack", "_core", "_dead_letter", "_discard", "_window")

    def __init__(
        self, core: SubscriptionCore, window: ReadingWindow, dead_letter: DeadLetter, ack: Ack, discard: Discard
    ) -> None:
        self._core = core
        self._window = window
        self._dead_letter = dead_letter
        self._ack = ack
        self._discard = discard

    async def give_up(self, poisoned: Poisoned, generation: int) -> None:
        """Returns when it is done, or when the engine knows that it failed. After a seek it is no longer wanted."""
        try:
            if poisoned.policy is PoisonPolicy.DEAD_LETTER:
                await self._publish(poisoned, generation)
            elif self._is_current(generation):
                await self._ack(generation, [(poisoned.offset, poisoned.offset)], Cause.POISON)
        except Exception as error:  # whatever the error, the message stays and is tried again
            self._core.warnings.warn("could not set aside offset", poisoned.offset, error)
            if self._is_current(generation):
                self._core.engine.poison_failed(poisoned.offset, self._core.lifetime.now, in_words(error))
                self._core.lifetime.wake()

    async def _publish(self, poisoned: Poisoned, generation: int) -> None:
        done = poisoned.offset, poisoned.offset
        self._core.log.check()  # a letter is published only if its publication can be recorded
        if self._window.pass_lost(poisoned.offset) > poisoned.offset:
            return
        batch = await self._window.read_at(poisoned.offset)
        if generation != self._core.known.cursor.generation:
            return
        if batch.base_offset > poisoned.offset:  # the topic had only buffered the message, and lost it
            self._discard(generation, done, Cause.UNUSED)
            return
        await self._dead_letter(batch, poisoned, self._core.known.name)
        if self._core.lifetime.state is not CLOSED:
            self._discard(generation, done, Cause.DEAD_LETTERED)

    def _is_current(self, generation: int) -> bool:
        return self._core.lifetime.state is not CLOSED and generation == self._core.known.cursor.generation
