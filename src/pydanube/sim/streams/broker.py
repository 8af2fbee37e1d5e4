"""A broker of streams with its clients: they publish, read and trim, and record the answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pydanube.base.errors import DanubeError, NodeBusy, OwnershipLost
from pydanube.ports.storage import StorageNodes
from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.stream.settings import StreamSettings
from pydanube.storage.stream.stream import Stream
from pydanube.wire.batch import Batch, build

if TYPE_CHECKING:
    from pydanube.sim.streams.world import StreamWorld

READ_BYTES = 20_000
TAKE_SECONDS = 3.0  # with one silent node; a call without an answer takes a second
PUBLISHERS = 3  # per stream
LEDGERS_LISTED = 4  # in a stream's record, so that pages of ledgers are needed soon
SEND_SIZES = (1, 1, 1, 4)  # batches sent before the first of them is waited for
BATCHES_PER_SEND = sum(SEND_SIZES) / len(SEND_SIZES)


class StreamBroker:
    """One life of a broker process: takes the streams it should own and serves its clients."""

    def __init__(
        self, world: StreamWorld, name: str, clock: SimClock, randomness: SimRandomness, nodes: StorageNodes
    ) -> None:
        self._world = world
        self._name = name
        self._clock = CheckedClock(clock)
        self._randomness = randomness
        self._nodes = nodes
        self._random = world.loop.fork_random(f"clients/{name}/{world.loop.events}")
        self.streams: dict[str, Stream] = {}
        self._emptied: set[str] = set()  # streams of which everything was just deleted

    async def run(self) -> None:
        """Takes the streams that it should own, forever."""
        tasks: dict[str, asyncio.Task[None]] = {}
        while True:
            for name, owner in self._world.owners.items():
                running = tasks.get(name)
                if owner == self._name and (running is None or running.done()):
                    tasks[name] = asyncio.get_running_loop().create_task(self._own(name))
            await asyncio.sleep(0.1)

    async def _own(self, name: str) -> None:
        """Owns one stream until it is lost, and runs its clients."""
        try:
            stream = await self.take(name)
        except DanubeError as error:
            self._world.loop.trace("take.failed", self._name, name, error.code)
            return
        clients = asyncio.gather(
            *(self._publish(stream) for _ in range(PUBLISHERS)), self._follow(stream), self._trim(stream)
        )
        try:
            await clients
            while not stream.lost:  # noqa: ASYNC110 - a stream does not report it
                await asyncio.sleep(0.2)
        except OwnershipLost:
            clients.cancel()

    async def take(self, name: str) -> Stream:
        plan = self._world.plan
        settings = StreamSettings(
            copies=plan.copies,
            durability=self._world.history.streams[name].durability,
            ledger_bytes=plan.ledger_bytes,
            ledgers_listed=LEDGERS_LISTED,
        )
        began, lives = self._world.loop.time(), self._world.storage_lives()
        stream = await Stream.take(name, self._world.catalog, self._nodes, self._clock, self._randomness, settings)
        self._world.loop.trace("took", self._name, name, stream.epoch)
        self._world.history.check_takeover(name, stream.confirmed)
        took = self._world.loop.time() - began
        if plan.profile == "silent" and None not in lives and lives == self._world.storage_lives():
            self._world.history.check(took < TAKE_SECONDS, "I8", f"it took {took:.0f} s to take {name}")
        self.streams[name] = stream
        return stream

    # -- clients -----------------------------------------------------------------------------------------------------

    async def _publish(self, stream: Stream) -> None:
        """Sends batches one by one, or several at once, until the stream has had the planned number."""
        history = self._world.history.streams[stream.name]
        draw = self._random
        while history.attempts < self._world.plan.messages:
            while stream.name in self._emptied and not self._world.healed:  # noqa: ASYNC110 - it is brief
                await asyncio.sleep(0.1)
            sent = []
            for _ in range(draw.choice(SEND_SIZES)):
                batch = self.batch(stream.name, history.attempts)
                history.attempts += 1
                try:
                    sent.append(stream.append(batch))
                except OwnershipLost:
                    raise
                except DanubeError:
                    history.refused += 1
            for stamped, future in sent:
                await self.confirmed(stream, stamped, future)
            await asyncio.sleep(draw.uniform(0.0, 2 * self._pause()))

    def _pause(self) -> float:
        """The average pause of a publisher, so that all of them are busy until everything heals."""
        plan = self._world.plan
        return PUBLISHERS * BATCHES_PER_SEND * plan.seconds / plan.messages

    def batch(self, stream: str, number: int) -> Batch:
        """A unique batch: its payloads say who sent them and when."""
        draw = self._random
        pad = b"." * draw.choice((0, 10, 200, 2000))
        origin = f"{stream}/{self._name}/{self._world.loop.events}/{number}"
        payloads = [f"{origin}/{part}".encode() + pad for part in range(draw.choice((1, 1, 3)))]
        return build(payloads, publish_time=self._clock.wall())

    async def confirmed(self, stream: Stream, batch: Batch, future: asyncio.Future[None]) -> bool:
        """Waits for the answer to one batch, records it, and returns whether the batch was confirmed."""
        history = self._world.history
        try:
            await asyncio.shield(future)
        except DanubeError as error:
            history.streams[stream.name].refused += 1
            history.check(
                not isinstance(error.__cause__ or error, NodeBusy), "I8", f"{stream.name}: a busy node ended a ledger"
            )
            self._world.loop.trace("refused", stream.name, batch.base_offset, error.code)
            return False
        self._world.loop.trace("acked", stream.name, batch.base_offset, batch.epoch, stream.receipt)
        for row, payload in enumerate(batch.payloads()):
            history.ack(stream.name, batch.base_offset + row, payload or b"")
        history.check(stream.confirmed >= batch.last_offset, "§1", f"{stream.name}: acknowledged before confirmed")
        return True

    async def _follow(self, stream: Stream) -> None:
        """Reads from any confirmed offset, and records what it sees."""
        history = self._world.history
        while not self._world.healed:
            await asyncio.sleep(self._random.uniform(0.01, 0.3))
            if stream.lost:
                raise OwnershipLost(stream.name)
            if stream.confirmed < stream.first:
                continue
            offset = self._random.randint(stream.first, stream.confirmed)
            try:
                batches = await stream.read(offset, READ_BYTES)
            except DanubeError as error:
                self._world.loop.trace("unread", stream.name, offset, error.code)
                continue
            for batch in batches:
                for row, payload in enumerate(batch.payloads()):
                    history.see(stream.name, batch.base_offset + row, payload or b"")

    async def _trim(self, stream: Stream) -> None:
        while self._world.plan.trims and not self._world.healed:
            await asyncio.sleep(self._random.uniform(0.2, 1.5))
            if stream.lost or stream.confirmed < stream.first:
                continue
            before = self._random.randint(stream.first, stream.confirmed)
            everything = self._world.plan.profile == "sweep" and self._random.random() < 0.5
            if everything:  # and nothing is published for a while
                self._emptied.add(stream.name)
                await stream.seal()
                before = stream.confirmed + 1
            self._world.history.trim(stream.name, before)
            try:
                gone = await stream.trim(before)
            except DanubeError:
                continue
            finally:
                if everything:
                    await asyncio.sleep(self._random.uniform(0.0, 2.0))
                    self._emptied.discard(stream.name)
            self._world.loop.trace("trimmed", stream.name, before, gone)
