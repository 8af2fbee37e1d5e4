"""The work of a subscription, a turn of the loop at a time: feeds the engine, and carries out what it decides.

Owned by its subscription. It never blocks: what needs a read or a record that takes time is left to the parts.
"""

from __future__ import annotations

from typing import Any

from pydanube.base.limits import EXAMINED_AT_ONCE
from pydanube.broker.subscription.ack_queue import AckQueue
from pydanube.broker.subscription.discards import Discards
from pydanube.broker.subscription.lifetime import Lifetime
from pydanube.broker.subscription.poison import PoisonHandler
from pydanube.broker.subscription.reading_window import ReadingWindow
from pydanube.broker.subscription.runs import runs_of
from pydanube.broker.subscription.sender import Sender
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Deliver, Poisoned, Skipped
from pydanube.ports.clock import Clock
from pydanube.topic.records import Cause
from pydanube.topic.state import Subscription

CLOCK_TOLERANCE = 100_000  # microseconds by which delivery times may be off
BATCHES_AT_ONCE = 32  # in one turn of the loop


class Dispatcher:
    """Everybody else only sees to it that there is a turn."""

    __slots__ = (
        "_acks",
        "_clock",
        "_clock_ahead",
        "_discards",
        "_engine",
        "_known",
        "_lifetime",
        "_poison",
        "_sender",
        "_window",
    )

    def __init__(
        self,
        known: Subscription,
        engine: Engine[Any],
        window: ReadingWindow,
        sender: Sender,
        acks: AckQueue,
        discards: Discards,
        poison: PoisonHandler,
        lifetime: Lifetime,
        clock: Clock,
    ) -> None:
        self._known = known
        self._engine = engine
        self._window = window
        self._sender = sender
        self._acks = acks
        self._discards = discards
        self._poison = poison
        self._lifetime = lifetime
        self._clock = clock
        self._clock_ahead = clock.wall() - lifetime.now  # of the monotonic clock, as far as the engine knows

    def follow_clock(self) -> None:
        """The engine's time is monotonic, and delivery times are of the wall clock, which may have been set since."""
        ahead = self._clock.wall() - self._lifetime.now
        if abs(ahead - self._clock_ahead) > CLOCK_TOLERANCE:
            self._engine.shift_delays(self._clock_ahead - ahead)
            self._clock_ahead = ahead
            self._lifetime.wake()

    def turn(self) -> None:
        """Hands out what is decided and feeds what is wanted, until the engine is full or there is nothing to read."""
        engine, sender, acks, lifetime = self._engine, self._sender, self._acks, self._lifetime
        now = lifetime.now
        sender.begin_turn()
        acks.turn(now)
        if acks.holds_back:
            lifetime.wake()
            return
        if not sender.rests(now):
            self._decide(now)
        room = EXAMINED_AT_ONCE
        for _ in range(BATCHES_AT_ONCE):
            if not room or sender.rests(now) or sender.outbox or not engine.wants():
                break
            portion = self._window.take(room, engine.key_bytes_at_once, sender.throttle, now)
            if portion is None:
                break
            batch, first, last, inspected = portion
            room -= inspected
            for run in runs_of(batch, self._known, first, last, self._clock_ahead):
                engine.offer(run, now)
            self._decide(now)
        else:
            lifetime.wake()  # let the loop do other work in between
        if acks.waiting or not room or (engine.unfinished and not sender.outbox and not sender.rests(now)):
            lifetime.wake()
        lifetime.wake_at(sender.due(engine.due()))

    def _decide(self, now: int) -> None:
        """Asks the engine, and does what it says. What it took back before it was handed out is not handed out."""
        effects, sender = self._engine.poll(now), self._sender
        sender.drop_recalled()
        for effect in effects:
            if type(effect) is Deliver:
                sender.deliver(effect)
            elif isinstance(effect, Poisoned):
                self._lifetime.start(self._poison.give_up(effect, self._known.cursor.generation))
            elif isinstance(effect, Skipped):
                self._discards.record(self._known.cursor.generation, (effect.first, effect.last), Cause.FILTERED)
        if sender.outbox:
            sender.fetch()
