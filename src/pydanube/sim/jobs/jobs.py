"""Jobs that write exactly once, like Spark: they stage rows in tasks, decide, commit, and repeat what failed.

They live in the broker's process and die with it; what a checkpoint would keep outlives them. A run that has ended may
come back as a zombie: it repeats its request at any later time. Some runs write a batch twice under one name, and some
checkpoints are wiped: both must be refused, or rows would be lost or written twice.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from pydanube.access.principals import ANONYMOUS
from pydanube.access.rights import Action
from pydanube.base.errors import DanubeError, RequestInvalid, SinkConflict
from pydanube.broker.door.door import Door
from pydanube.broker.door.session import Origin
from pydanube.broker.topic.topic import Topic
from pydanube.operations.sinks import BeginSink, CommitSink
from pydanube.sim.jobs.history import ZOMBIES_MAX, WriterMemory
from pydanube.topic.sinks import Once, SinkKey, SinkRequest, Verdict
from pydanube.wire.batch import build

if TYPE_CHECKING:
    from pydanube.sim.jobs.world import SinkWorld

ROWS = (0, 1, 4, 12, 30)  # per batch
TASKS = (1, 2, 4)
REFUSED_ROWS = 3  # in writes that are refused
Refs = dict[str, list[list[int]]]


class Jobs:
    """The jobs of one life of the broker."""

    def __init__(self, world: SinkWorld, door: Door) -> None:
        self._world = world
        self._door = door
        self._session = door.session(ANONYMOUS, Origin("sim"))
        self._random = world.loop.fork_random(f"jobs/{world.loop.events}")

    async def write(self, writer: WriterMemory) -> None:
        """Starts run after run until all batches are written, and again if there are more later."""
        while True:
            if writer.batch < self._world.batches:
                await self._run(writer)
            await asyncio.sleep(self._random.uniform(0.0, 0.2))

    async def repeat_late(self, writer: WriterMemory) -> None:
        """Repeats requests of runs that have ended."""
        while not self._world.healed:
            await asyncio.sleep(self._random.uniform(0.05, 1.0))
            if writer.second_writes and self._random.random() < 0.5:
                await self._write_second(writer, self._random.choice(writer.second_writes))
            if not writer.zombies:
                continue
            request = self._random.choice(writer.zombies)
            try:
                verdict = await self._ask_to_commit(writer.key, request)
            except DanubeError as error:
                self._world.loop.trace("zombie", writer.name, request.run, request.batch, error.code)
                continue
            self._world.loop.trace("zombie", writer.name, request.run, request.batch, verdict.value)
            if verdict is Verdict.NEW:
                self._world.sinks.answered(writer, request.batch, verdict)

    async def start_over(self, writer: WriterMemory) -> None:
        """A query without its checkpoint starts over, and its first batch contains more input. It must be refused."""
        while writer.once is Once.STREAM and not self._world.healed:
            await asyncio.sleep(self._random.uniform(0.2, 2.0))
            if not writer.answered:
                continue
            run, source = f"{writer.name}-again", self._source(writer.batch + 5)
            try:
                decision, _ = await self._decide(writer.wiped, self._rows(writer, 0, "")[:REFUSED_ROWS])
                request = SinkRequest(writer.once, run, 0, source, decision)
                verdict = await self._ask_to_commit(writer.wiped, request)
            except DanubeError as error:
                self._world.loop.trace("wiped", run, error.code)
                continue
            self._world.sinks.check_refused(writer, "a query that started over", verdict)

    async def _write_second(self, writer: WriterMemory, request: SinkRequest) -> None:
        """Writes a batch again in a run whose write of that batch was already answered."""
        try:
            verdict = await self._ask_to_commit(writer.key, request)
        except DanubeError as error:
            return self._world.loop.trace("second", request.run, request.batch, error.code)
        self._world.sinks.check_refused(writer, f"the second write of batch {request.batch} in {request.run}", verdict)

    async def _run(self, writer: WriterMemory) -> None:
        """One run, until something fails. It may begin with a batch that exists: the checkpoint may not know it."""
        draw, world = self._random, self._world
        writer.runs += 1
        run = f"{writer.name}-{writer.runs}"
        batch = writer.batch
        if batch and batch not in writer.attempts and draw.random() < 0.4:
            batch -= 1
        while batch < world.batches:
            try:
                request = await self._stage(writer, run, batch)
                await self._commit(writer, request)
                if draw.random() < 0.2:
                    again = await self._ask_to_commit(writer.key, request)
                    world.history.check(again is Verdict.DONE, "I12", f"{run}: batch {batch} is new when asked again")
                if writer.once is Once.STREAM and draw.random() < 0.15 and not world.healed:
                    decision, _ = await self._decide(writer.key, self._rows(writer, batch, run)[:REFUSED_ROWS])
                    writer.second_writes.append(request._replace(decision=decision))
                    del writer.second_writes[:-ZOMBIES_MAX]
                    return await self._write_second(writer, writer.second_writes[-1])
            except TimeoutError:
                return world.loop.trace("given up", run, batch)
            except DanubeError as error:
                ours = isinstance(error, (SinkConflict, RequestInvalid))
                world.history.check(not ours, "I12", f"{run}: batch {batch} is refused: {error}")
                return world.loop.trace("failed", run, batch, error.code)
            writer.batch = max(writer.batch, batch + 1)
            batch += 1
            await asyncio.sleep(draw.uniform(0.0, 2 * world.pause))

    async def _commit(self, writer: WriterMemory, request: SinkRequest) -> None:
        writer.remember(request)
        self._world.commit_begins()
        self._world.loop.trace("commit", request.run, request.batch, request.decision)
        patience = self._random.uniform(0.0, 0.05) if self._random.random() < 0.15 else None
        async with asyncio.timeout(patience):
            verdict = await self._ask_to_commit(writer.key, request)
        self._world.loop.trace("committed", request.run, request.batch, verdict.value)
        self._world.sinks.answered(writer, request.batch, verdict)

    async def _ask_to_commit(self, key: SinkKey, request: SinkRequest) -> Verdict:
        asked = CommitSink(
            key.query,
            key.target,
            request.batch,
            request.decision,
            name=key.name,
            once=request.once.value,
            run=request.run,
            source=request.source,
        )
        return Verdict((await self._session.carry_out(asked)).verdict)

    # -- staging -------------------------------------------------------------------------------------------------------

    async def _stage(self, writer: WriterMemory, run: str, batch: int) -> SinkRequest:
        """Stages all rows of the batch. The rows are always the same, their distribution over tasks is not."""
        rows = self._rows(writer, batch, run if self._random.random() < 0.5 else "")
        decision, content = await self._decide(writer.key, rows)
        writer.attempts.setdefault(batch, []).append(content)
        return SinkRequest(writer.once, run, batch, self._source(batch), decision)

    def _source(self, batch: int) -> str:
        """Where the input of a batch ends, in the format of the Spark source."""
        end = {"/default/in": {"id": 1, "0": 10 * batch + 10, "began": [0]}}
        return json.dumps([end], indent=self._random.choice((None, 1)))

    async def _decide(self, key: SinkKey, rows: list[tuple[str, bytes]]) -> tuple[int, dict[str, list[bytes]]]:
        """Stages the rows in tasks. Returns the offset of the message that lists them, and the rows by partition."""
        name = (await self._session.carry_out(BeginSink(key.query, key.target, key.name))).staging
        staged = (await self._door.topics.open(ANONYMOUS, Action.TOPIC_PUBLISH, name)).reliable
        draw = self._random
        draw.shuffle(rows)
        tasks = draw.choice(TASKS)
        shares = [rows[task::tasks] for task in range(tasks)]
        found = await asyncio.gather(*(self._task(staged, share) for share in shares))
        refs: Refs = {}
        content: dict[str, list[bytes]] = {}
        for share, parts in zip(shares, found, strict=True):
            for partition, payload in share:
                content.setdefault(partition, []).append(payload)
            for partition, each in parts.items():
                refs.setdefault(partition, []).extend(each)
        return await self._publish(staged, [json.dumps({"parts": refs}).encode()]), content

    def _rows(self, writer: WriterMemory, batch: int, tag: str) -> list[tuple[str, bytes]]:
        """The rows with their partitions. A tag changes bytes and partitions, as `rand()` in a query would."""
        fixed = self._world.loop.fork_random(f"rows/{writer.name}/{batch}")
        rows = []
        for row in range(fixed.choice(ROWS)):
            partition, pad = fixed.choice(writer.partitions), fixed.choice((0, 20, 600))
            if tag:
                partition = self._random.choice(writer.partitions)
            rows.append((partition, writer.payload(batch, row, tag, pad)))
        return rows

    async def _task(self, staged: Topic, rows: list[tuple[str, bytes]]) -> Refs:
        """Publishes the rows of each partition in order, a few at a time."""
        refs: Refs = {}
        for partition in dict.fromkeys(partition for partition, _ in rows):
            payloads = [payload for there, payload in rows if there == partition]
            while payloads:
                count = self._random.choice((1, 3, 5))
                first = await self._publish(staged, payloads[:count])
                refs.setdefault(partition, []).append([first, first + len(payloads[:count]) - 1])
                del payloads[:count]
        return refs

    async def _publish(self, staged: Topic, payloads: list[bytes]) -> int:
        receipt = staged.publish(build(payloads, publish_time=self._door.clock.wall()))
        await receipt.confirmed
        return receipt.offset
