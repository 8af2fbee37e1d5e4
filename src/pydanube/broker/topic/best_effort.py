"""A best-effort topic (§5): delivers each message at most once, to consumers with permits, or drops it.

It has the interface of the reliable `Topic` and none of its guarantees: nothing is written, kept or sent again.
Whatever needs a guarantee is refused with `NotReliable`.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import NoReturn

from pydanube.base.counting import Traffic
from pydanube.base.errors import (
    DanubeError,
    NotReliable,
    SubscriptionKindDiffers,
    SubscriptionNotFound,
    TooManySubscriptions,
    TopicClosed,
)
from pydanube.base.limits import SECOND, SUBSCRIPTIONS_MAX, UNUSED_SUBSCRIPTION_SECONDS
from pydanube.broker.limits.rates import Rate, rate_of
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.topic.best_effort_subscription import BestEffortSubscription
from pydanube.broker.topic.served import LATEST, STORES_NOTHING, ConnectsConsumers, Receipt
from pydanube.dispatch.policy import PoisonPolicy
from pydanube.ports.clock import Clock
from pydanube.topic.records import SubscriptionKind, name_bytes
from pydanube.wire.batch import Batch

EPOCH = 1  # in every stamp; never compared


async def _all_of(answers: list[Future[None]]) -> None:
    for answer in answers:
        await answer


class BestEffortTopic(ConnectsConsumers):
    """Owned by its broker's loop. Offsets count what was published since it was opened, and have no meaning later."""

    reliable = False
    receipt = "none"  # the durability of a publish
    stored_bytes = 0
    failed = 0
    lost = False  # no other broker can take it over

    def __init__(self, name: str, clock: Clock, options: TopicOptions | None = None) -> None:
        self.name = name
        self.options = options or TopicOptions()
        self.subscriptions: dict[str, BestEffortSubscription] = {}
        self.published = 0  # messages; also the next offset
        self.inbound = Traffic()
        self.unheard = 0  # messages that were published while there was no subscription
        self._clock = clock
        self._append_time = 0
        self._done: Future[None] = asyncio.get_running_loop().create_future()  # the answer where nothing is stored
        self._done.set_result(None)
        self._why_closed: DanubeError | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        return self.published, self.published

    @property
    def drops(self) -> dict[str, int]:
        return {"unheard": self.unheard}

    def as_reliable(self, refusal: str = STORES_NOTHING) -> NoReturn:
        raise NotReliable(f"{self.name} {refusal}")

    def alter(self, options: TopicOptions) -> None:
        """Applies new options. Only the dispatch rate matters here."""
        self.options = options
        for host in self.subscriptions.values():
            host.rate = self._rate()

    def _rate(self) -> Rate | None:
        return rate_of(self.options.dispatch_messages_per_second, self.options.dispatch_bytes_per_second)

    # -- publishing ----------------------------------------------------------------------------------------------------

    def admit(self, bytes: int) -> None:
        """Does nothing: nothing is kept, so there is always room."""

    def producer_name(self, producer: int) -> str:
        return ""

    def publish(self, batch: Batch, producer_epoch: int = 0) -> Receipt:
        """Hands the batch to consumers that have asked for messages. Always succeeds; dropped messages are counted."""
        self._check_open()
        batch.check_published()
        if batch.producer_id:
            raise NotReliable(f"{self.name} is not reliable and does not track sequences; send without a producer id")
        if batch.has_delivery_times:
            raise NotReliable(f"{self.name} is not reliable and cannot delay messages until a delivery time")
        self._append_time = max(self._append_time, self._clock.wall())
        stamped = batch.stamped(self.published, EPOCH, self._append_time)
        self.published += batch.count
        self.inbound.add(batch.count, stamped.size)
        if not self.subscriptions:
            self.unheard += batch.count
        now = int(self._clock.monotonic() * SECOND)
        answers = [host.hand_out(stamped, now) for host in self.subscriptions.values()]
        waiting = [answer for answer in answers if answer is not self._done]
        if not waiting:
            return Receipt(stamped.base_offset, self._done)
        return Receipt(
            stamped.base_offset, waiting[0] if len(waiting) == 1 else asyncio.ensure_future(_all_of(waiting))
        )

    # -- subscriptions -------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        name: str,
        kind: SubscriptionKind,
        *,
        start: str | int = LATEST,
        options: SubscriptionOptions | None = None,
        create: bool = True,
    ) -> BestEffortSubscription:
        """The subscription of that name, created if it is new. It gets what is published from now on.

        Subscriptions here do not survive a restart, so `create` is ignored.
        """
        self._check_open()
        if start != LATEST:
            raise NotReliable(f"{self.name} is not reliable; its subscriptions start at {LATEST}, not {start!r}")
        if options is not None and options.failure.poison is PoisonPolicy.DEAD_LETTER:
            raise NotReliable(f"{self.name} is not reliable and never redelivers, so it has no dead letters")
        known = self.subscriptions.get(name)
        if known is None:
            name_bytes(name)
            if len(self.subscriptions) >= SUBSCRIPTIONS_MAX:
                raise TooManySubscriptions(f"{SUBSCRIPTIONS_MAX} subscriptions")
            known = self.subscriptions[name] = BestEffortSubscription(self.name, name, kind, self._done)
            known.rate = self._rate()
        if known.kind is not kind:
            raise SubscriptionKindDiffers(f"{name!r} is {known.kind.name.lower()}, not {kind.name.lower()}")
        return known

    async def unsubscribe(self, name: str) -> None:
        self._check_open()
        host = self.subscriptions.pop(name, None)
        if host is None:
            raise SubscriptionNotFound(f"subscription {name!r} does not exist")
        host.close(SubscriptionNotFound(f"subscription {name!r} of {self.name} was deleted"))

    # -- housekeeping and the end --------------------------------------------------------------------------------------

    def end_unused(self) -> None:
        """Ends subscriptions that have been unused for long."""
        now = int(self._clock.monotonic() * SECOND)
        longest = (self.options.unused_subscription_seconds or UNUSED_SUBSCRIPTION_SECONDS) * SECOND
        for host in list(self.subscriptions.values()):
            if host.consumers:
                host.unused_since = None
            elif host.unused_since is None:
                host.unused_since = now
            elif now - host.unused_since >= longest:
                del self.subscriptions[host.name]
                host.close(SubscriptionNotFound(f"subscription {host.name!r} of {self.name} was unused and ended"))

    async def close(self, why: DanubeError | None = None, *, seal: bool = True) -> None:
        """Closes it: its users get `why`, now and in later calls."""
        self._why_closed = self._why_closed or why or TopicClosed(f"this broker no longer serves {self.name}")
        for host in self.subscriptions.values():
            host.close(self._why_closed)

    def _check_open(self) -> None:
        if self._why_closed is not None:
            raise type(self._why_closed)(*self._why_closed.args)
