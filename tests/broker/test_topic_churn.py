"""Everything at once, seeded: all four types, acks, nacks, seeks, failing disks, kills and power cuts, then peace.

While it goes on, nothing comes again whose ack was confirmed. In the end every message is there once, in order, and
every subscription has had all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from random import Random

import pytest

from broker.topic_world import TopicWorld, batch_of, insist, numbers
from pydanube.base.errors import DanubeError, DiskFailed, DiskFull
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import KIB, SECOND
from pydanube.broker.state import log as state_log
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.subscription.delivery import Delivery
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.producer_sessions import Session
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch
from storage.node_world import until

KINDS = list(SubscriptionKind)
POLICY = FailurePolicy(ack_timeout=2 * SECOND, base_delay=SECOND // 10, max_delay=SECOND, max_redelivery_count=1000)
OPTIONS = SubscriptionOptions(POLICY, DispatchSettings(unacked_max=100, lookahead_max=100))
LIVES = 3


@pytest.fixture(autouse=True)
def _small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "STATE_COMPACT_BYTES", 2 * KIB)


class Known:
    """What a subscription's clients were promised, across all lives."""

    def __init__(self) -> None:
        self.generation = 0  # of the last seek that was confirmed
        self.confirmed: set[tuple[int, int]] = set()  # generation and offset of acks
        self.handed: dict[int, bytes | None] = {}  # every offset that was ever delivered


class Reader:
    """A consumer that works on what it gets, a little later, well or badly."""

    def __init__(self, host: SubscriptionHost, known: Known, random: Random, *, careful: bool) -> None:
        self.id = ConsumerId(0)
        self._host = host
        self._known = known
        self._random = random
        self._careful = careful
        self._tasks: list[asyncio.Future[None]] = []
        self._closed = False

    def deliver(self, delivery: Delivery) -> None:
        known = self._known
        payloads = delivery.cut().payloads()
        for offset, payload in zip(range(delivery.first, delivery.last + 1), payloads, strict=True):
            assert (delivery.generation, offset) not in known.confirmed, f"{offset} came again"
            assert known.handed.setdefault(offset, payload) == payload
        self._tasks.append(asyncio.ensure_future(self._work(delivery)))

    def reset(self, generation: int) -> None:
        assert generation > self._known.generation

    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """It works on whatever it was handed: that is what a confirmed ack is checked against."""

    def unreadable(self, error: DanubeError | None) -> None:
        """A read failed for a while; in the end everything must have come all the same."""

    def closed(self, error: DanubeError) -> None:
        self._closed = True

    async def _work(self, delivery: Delivery) -> None:
        random, host = self._random, self._host
        await asyncio.sleep(random.uniform(0, 0.05))
        ranges = [(delivery.first, delivery.last)]
        draw = 1.0 if self._careful else random.random()
        if draw < 0.1:
            host.nack(self.id, delivery.generation, ranges, random.randrange(SECOND))
        elif draw > 0.2:
            if draw < 0.4:
                ranges = [(random.randint(delivery.first, delivery.last),) * 2]
            if await succeeds(host.ack, delivery.generation, ranges):
                first, last = ranges[0]
                self._known.confirmed.update((delivery.generation, offset) for offset in range(first, last + 1))
        if not self._closed:
            host.grant(self.id, delivery.last - delivery.first + 1)


async def succeeds(call: object, *arguments: object) -> bool:
    """Whether it was confirmed; an error that says why not is fine."""
    assert callable(call)
    try:
        answer: Awaitable[None] = call(*arguments)
        await answer
    except DanubeError:
        return False
    return True


class Churn:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        options = TopicOptions(ledger_bytes=self.random.choice([KIB, 16 * KIB, 1 << 20]))
        cache = self.random.choice([1, 2 * KIB, 1 << 20])
        self.world = TopicWorld(seed, options=options, cache_bytes=cache)
        self.known = {kind.name: Known() for kind in KINDS}
        self.sent = 0  # sequences that were given to the topic at least once
        self.confirmed = 0  # of those

    async def life(self, *, careful: bool = False) -> None:
        topic = await insist(self.world.open)
        session = await insist(lambda: topic.attach("p"))
        assert session.next_sequence >= self.confirmed
        for kind in KINDS:
            host = await insist(lambda kind=kind: topic.subscribe(kind.name, kind, start="earliest", options=OPTIONS))
            assert host.known.cursor.generation >= self.known[kind.name].generation
            for _ in range(1 if kind is SubscriptionKind.EXCLUSIVE else 2):
                self._connect(topic, host, careful)
        if careful:
            await self._finish(topic, session)
            return
        work = [self._publish(topic, session), self._fail(), self._seek(topic), self._housekeep(topic)]
        tasks = [asyncio.ensure_future(part) for part in work]
        await asyncio.wait(tasks, timeout=self.random.uniform(0.1, 1.5))
        for task in tasks:
            if task.done():
                await task

    def _connect(self, topic: Topic, host: SubscriptionHost, careful: bool) -> None:
        reader = Reader(host, self.known[host.known.name], self.random, careful=careful)
        reader.id = topic.connect(host, "reader", reader).id
        host.grant(reader.id, self.random.randint(1, 50))

    async def _publish(self, topic: Topic, session: Session) -> None:
        """In bursts; what failed is sent again as it was, as a client does it. Batches are of three."""
        while True:
            burst = range(self.confirmed, self.confirmed + 3 * self.random.randint(1, 6), 3)
            receipts = []
            for sequence in burst:
                self.sent = max(self.sent, sequence + 3)
                try:
                    receipts.append(topic.publish(self._batch(session, sequence), session.epoch))
                except DanubeError:
                    break
            for sequence, receipt in zip(burst, receipts, strict=False):
                if not await succeeds(lambda receipt=receipt: receipt.confirmed):
                    break
                self.confirmed = sequence + 3
            await asyncio.sleep(self.random.uniform(0, 0.2))

    def _batch(self, session: Session, sequence: int) -> Batch:
        keys = [f"k{number % 11}" for number in range(sequence, sequence + 3)]
        names = numbers(sequence, sequence + 2)
        return batch_of(*names, keys=keys, producer_id=session.producer, first_sequence=sequence)

    async def _fail(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.1, 1))
            kind = self.random.choice(["write", "sync", "read", "create"])
            error = self.random.choice([DiskFailed, DiskFull])
            self.world.disk.fail_next(kind, error, count=self.random.randint(1, 3))

    async def _seek(self, topic: Topic) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.2, 1.5))
            name = self.random.choice(KINDS).name
            host = topic.subscriptions[name]
            if await succeeds(topic.seek, host, self.random.randint(0, host.known.cursor.floor)):
                self.known[name].generation = host.known.cursor.generation

    async def _housekeep(self, topic: Topic) -> None:
        while True:
            await asyncio.sleep(0.2)
            await topic.tick()

    async def _finish(self, topic: Topic, session: Session) -> None:
        """Peace: all that was sent is sent again, and everybody finishes."""
        for sequence in range(self.confirmed, self.sent, 3):
            batch = self._batch(session, sequence)
            await insist(lambda batch=batch: topic.publish(batch, session.epoch).confirmed)
        end = topic.ledger.confirmed_end
        assert end == self.sent
        await until(lambda: all(host.known.cursor.floor == end for host in topic.subscriptions.values()), 300)
        expected = {offset: name.encode() for offset, name in enumerate(numbers(0, self.sent - 1))}
        for known in self.known.values():
            assert known.handed == expected
        await topic.tick()
        await topic.close()


def run(seed: int) -> None:
    churn = Churn(seed)
    world = churn.world
    try:
        for _ in range(LIVES):
            world.run(churn.life())
            world.disk.cure()
            churn.random.choice([world.restart, world.cut])()
        world.run(churn.life(careful=True))
    except BaseException as problem:
        problem.add_note(f"seed {seed}")
        world.loop.shutdown()
        raise
    world.end()


SEEDS = range(12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_no_confirmed_ack_comes_again_and_everybody_gets_everything_once(seed: int) -> None:
    run(seed)
