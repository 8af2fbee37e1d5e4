"""The work of a subscription, one turn of the loop at a time: feeds the engine, and carries out what it decides.

Owned by its subscription. It never blocks: whatever needs a read or takes time to record is left to the other parts.
"""

from __future__ import annotations

from pydanube.base.limits import EXAMINED_AT_ONCE
from pydanube.broker.subscription.ack_queue import AckQueue
from pydanube.broker.subscription.core import SubscriptionCore
from pydanube.broker.subscription.poison import PoisonHandler
from pydanube.broker.subscription.reading_window import Discard, ReadingWindow
from pydanube.broker.subscription.runs import runs_of
from pydanube.broker.subscription.sender import Sender
from pydanube.dispatch.events import Deliver, Poisoned, Skipped
from pydanube.ports.clock import Clock
from pydanube.topic.records import Cause

CLOCK_TOLERANCE = 100_000  # microseconds by which delivery times may be off
BATCHES_AT_ONCE = 32  # in one turn of the loop


class Dispatcher:
    """Does all the work in `turn`; the other parts only schedule turns."""

    __slots__ = ("_acks", "_clock", "_clock_ahead", "_core", "_discard", "_poison", "_sender", "_window")

    def __init__(
        self,
        core: SubscriptionCore,
        window: ReadingWindow,
        sender: Sender,
        acks: AckQueue,
        poison: PoisonHandler,
        discard: Discard,
        clock: Clock,
    ) -> None:
        self._core = core
        self._window = window
        self._sender = sender
        self._acks = acks
        self._poison = poison
        self._discard = discard
        self._clock = clock
        self._clock_ahead = clock.wall() - core.lifetime.now  # of the monotonic clock, as the engine knows it

    def follow_clock(self) -> None:
        """Tells the engine when the wall clock was set: its own time is monotonic, delivery times are not."""
        core = self._core
        ahead = self._clock.wall() - core.lifetime.now
        if abs(ahead - self._clock_ahead) > CLOCK_TOLERANCE:
            core.engine.shift_delays(self._clock_ahead - ahead)
            self._clock_ahead = ahead
            core.lifetime.wake()

    def turn(self) -> None:
        """Hands out decided deliveries and feeds the engine, until it is full or there is nothing to read."""
        core, sender, acks = self._core, self._sender, self._acks
        engine, lifetime = core.engine, core.lifetime
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
            for run in runs_of(batch, core.known, first, last, self._clock_ahead):
                engine.offer(run, now)
            self._decide(now)
        else:
            lifetime.wake()  # let the loop do other work in between
        if acks.waiting or not room or (engine.unfinished and not sender.outbox and not sender.rests(now)):
            lifetime.wake()
        lifetime.wake_at(sender.due(engine.due()))

    def _decide(self, now: int) -> None:
        """Asks the engine and carries out its decisions. Deliveries recalled before they were sent are dropped."""
        core, sender = self._core, self._sender
        effects = core.engine.poll(now)
        sender.drop_recalled()
        for effect in effects:
            if type(effect) is Deliver:
                sender.deliver(effect)
            elif isinstance(effect, Poisoned):
                core.lifetime.start(self._poison.give_up(effect, core.known.cursor.generation))
            elif isinstance(effect, Skipped):
                self._discard(core.known.cursor.generation, (effect.first, effect.last), Cause.FILTERED)
        if sender.outbox:
            sender.fetch()
