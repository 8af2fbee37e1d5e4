"""Publishes the dead letters of a pipeline to their topic again, so that they go through the pipeline again.

The letters of a partition are published under one producer name. Before that, the broker records which letters follow,
and their sequence numbers. So after a crash, the next run finds out from the topic how many of them were published,
even if there are new letters. The broker also records the offsets of letters that were redriven. A run that starts
while another is running takes over from it: the earlier one can record nothing more, and therefore publishes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from hashlib import sha256
from heapq import heappop, heappush
from typing import Any, NamedTuple

from pydanube.base.errors import (
    BatchTooLarge,
    DanubeError,
    MessageTooLarge,
    PartitionMissing,
    ProducerFenced,
    RedriveOvertaken,
    TopicNotFound,
)
from pydanube.base.limits import MIB, REFUSALS_NAMED_MAX
from pydanube.client import Client, Producer
from pydanube.client.outgoing_batch import Receipt
from pydanube.client.send_results import SendResult
from pydanube.pipeline.dead_letters.letters import Letter, letters_of
from pydanube.pipeline.dead_letters.redrive_record import OVERTAKEN, OffsetRange, Pending, RedriveRecord, is_exact
from pydanube.pipeline.spec.flow import Flow
from pydanube.spark.plan import TopicState

PASS_LETTERS_MAX = 10_000  # of a partition that are held in memory; for more, the table is read again
PASS_BYTES_MAX = 64 * MIB  # of all partitions; one letter is always held, so that every pass makes progress
CHUNK = 500  # letters that are published and recorded together
REFUSED = (MessageTooLarge, BatchTooLarge)  # a letter that its topic will never accept
ORIGIN = "x-redriven-from"  # attribute: the topic and offset of the original message


class Redriven(NamedTuple):
    letters: int  # published; in a dry run, how many would be, as far as one pass goes
    late: int  # left, because they would be late again
    others: int  # left, because they did not come from a topic, or it no longer exists
    more: bool = False  # in a dry run: there are more letters than one pass takes
    unsure: int = 0  # left, because about as many may not have been redriven, and it is not known which
    refused: int = 0  # left, because their topic does not accept them
    refusals: tuple[str, ...] = ()  # the first of them, and why


class Partition(NamedTuple):
    """A partition of the topic with this id: a topic created again has another one. Late letters are separate."""

    topic: str
    id: int
    number: int
    late: bool

    @property
    def key(self) -> str:
        return f"{self.id}.{self.number}{'.late' if self.late else ''}"


async def redrive(
    client: Client, flow: Flow, url: str, *, late: bool = False, again: bool = False, dry_run: bool = False
) -> Redriven:
    """Redrives all letters that were not redriven yet; with `late` also late rows, and with `again` also letters that
    may have been redriven already.
    """
    work = _Redrive(client, flow)
    if not dry_run:
        await work.finish_pending()
    last: dict[Partition, int] | None = None  # letters that fail again are appended after it
    while True:
        found = _Pass(work, last, late=late, again=again)
        async for letters in letters_of(client, flow, url):
            located = [(await work.topics.partition(letter), letter) for letter in letters]
            await work.record.load(partition.key for partition, _ in located if partition is not None)
            found.take(located)
        last = found.newest if last is None else last
        chosen = found.chosen()
        if dry_run or not chosen:
            count = work.count + sum(map(len, chosen.values()))
            refused = len(work.refusals), tuple(work.refusals[:REFUSALS_NAMED_MAX])
            return Redriven(count, found.tardy, found.others, bool(found.cut), found.unsure, *refused)
        for partition, some in chosen.items():
            await work.publish(partition, some)


class _Redrive:
    def __init__(self, client: Client, flow: Flow) -> None:
        self._client, self._pipeline = client, flow.name
        self.record, self.topics = RedriveRecord(client, flow.name), _Topics(client)
        self.gone = set[Partition]()
        self.tried = set[tuple[Partition, int]]()  # letters that this run is done with, although no record says so
        self.refusals: list[str] = []
        self.count = 0

    async def finish_pending(self) -> None:
        """Records what an earlier run has published but not recorded, because it was killed or overtaken."""
        pending = await self.record.take_over()
        if not pending.offsets:
            return
        await self.record.load([pending.key])
        known = self.record.redriven(pending.key)
        if all(known.find(offset) for offset in pending.offsets):
            return
        try:
            async with self._producer(pending.key, pending.address) as producer:
                there = _next_sequence(producer) - pending.first_sequence
        except (TopicNotFound, PartitionMissing):
            return
        if there > 0:
            await self.record.add(pending.key, pending.offsets[:there])

    async def publish(self, partition: Partition, letters: list[Letter]) -> None:
        size = CHUNK
        while letters:
            part = letters[:size]
            try:
                sent, error = await self._publish(partition, part)
            except (TopicNotFound, PartitionMissing):
                self.gone.add(partition)
                return
            except ProducerFenced as fenced:  # the run that took over has counted those that were published
                raise RedriveOvertaken(OVERTAKEN.format(self._pipeline)) from fenced
            if sent:
                known = self.record.redriven(partition.key)
                self.tried.update((partition, each.offset) for each in part[:sent] if known.find(each.offset))
                await self.record.add(partition.key, [letter.offset for letter in part[:sent]])
            self.count += sent
            letters = letters[sent:]
            if error is not None and len(part) == 1:
                self.tried.add((partition, part[0].offset))
                self.refusals.append(f"{self.topics.address(partition)} offset {part[0].offset}: {error.code}: {error}")
                letters = letters[1:]
            size = CHUNK if error is None or len(part) == 1 else 1  # alone, a letter shows whether it is refused

    async def _publish(self, partition: Partition, letters: list[Letter]) -> tuple[int, DanubeError | None]:
        """How many letters were published, and why the next one was not. None after it was."""
        address = self.topics.address(partition)
        await self.record.check()  # opening the producer fences the run that has it
        async with self._producer(partition.key, address) as producer:
            first = _next_sequence(producer)
            await self.record.note(Pending(partition.key, address, first, [letter.offset for letter in letters]))
            sent: list[SendResult[Receipt]] = []
            error: DanubeError | None = None
            for number, letter in enumerate(letters, first):
                try:
                    sent.append(producer.send(letter.value, sequence=number, **_options(address, letter)))
                except REFUSED as refusal:
                    error = refusal
                    break
            failed = [each for each in await asyncio.gather(*map(_outcome, sent)) if each is not None]
            if failed and not isinstance(failed[0], REFUSED):
                raise failed[0]
            return len(sent) - len(failed), failed[0] if failed else error

    def _producer(self, key: str, address: str) -> Producer:
        """Opens one producer name for each partition. Its holder records what it publishes, so nothing is repeated
        unnoticed."""
        name = f"redrive-{sha256(f'{self._pipeline} {key}'.encode()).hexdigest()[:32]}"
        return self._client.producer(address, name=name, create=False, fresh=True)


async def _outcome(sent: SendResult[Receipt]) -> DanubeError | None:
    try:
        await sent
    except DanubeError as error:
        return error
    return None


def _next_sequence(producer: Producer) -> int:
    return 0 if producer.last_sequence is None else producer.last_sequence + 1


def _options(address: str, letter: Letter) -> dict[str, Any]:
    return {
        "key": letter.key,
        "attributes": {**letter.attributes, ORIGIN: f"{address} {letter.offset}"},
        "event_time": letter.time if letter.event_time is None else letter.event_time,
    }


class _Pass:
    """The first letters of each partition, each message once, as many as the limits on memory allow."""

    def __init__(self, work: _Redrive, last: dict[Partition, int] | None, *, late: bool, again: bool) -> None:
        self._work, self._last, self._late, self._again = work, last, late, again
        self._doubtful: dict[tuple[Partition, OffsetRange], int] = {}  # number of letters in ranges that are not exact
        self._heaps: dict[Partition, list[tuple[int, int, Letter]]] = {}  # the highest offset on top
        self._held: set[tuple[Partition, int]] = set()
        self._bytes = 0
        self._number = 0
        self.cut: dict[Partition, int] = {}  # from this offset on, letters are left for the next pass
        self.newest: dict[Partition, int] = {}
        self.tardy = self.others = 0

    def take(self, letters: Iterable[tuple[Partition | None, Letter | None]]) -> None:
        for partition, letter in letters:
            if partition is None or letter is None or partition in self._work.gone:
                self.others += 1
                continue
            offset = letter.offset
            self.newest[partition] = max(self.newest.get(partition, -1), offset)
            if self._is_done(partition, offset) or (self._last is not None and offset > self._last.get(partition, -1)):
                continue
            if letter.late and not self._late:
                self.tardy += 1
            elif (partition, offset) not in self._held and offset < self.cut.get(partition, offset + 1):
                self._hold(partition, letter)

    def _is_done(self, partition: Partition, offset: int) -> bool:
        if (partition, offset) in self._work.tried:
            return True
        known = self._work.record.redriven(partition.key).find(offset)
        if known is None or is_exact(known):
            return known is not None
        self._doubtful[partition, known] = self._doubtful.get((partition, known), 0) + 1
        return not self._again

    @property
    def unsure(self) -> int:
        return 0 if self._again else sum(max(0, found - known[2]) for (_, known), found in self._doubtful.items())

    def _hold(self, partition: Partition, letter: Letter) -> None:
        heap = self._heaps.setdefault(partition, [])
        self._number += 1
        heappush(heap, (-letter.offset, self._number, letter))
        self._held.add((partition, letter.offset))
        self._bytes += letter.size
        if len(heap) > PASS_LETTERS_MAX or (self._bytes > PASS_BYTES_MAX and len(self._held) > 1):
            _, _, over = heappop(heap)
            self._held.discard((partition, over.offset))
            self._bytes -= over.size
            self.cut[partition] = over.offset

    def chosen(self) -> dict[Partition, list[Letter]]:
        """The letters in the order of their offsets."""
        heaps = {partition: sorted(heap, reverse=True) for partition, heap in self._heaps.items() if heap}
        return {partition: [letter for _, _, letter in heap] for partition, heap in heaps.items()}


class _Topics:
    """The current state of topics that letters came from."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, TopicState | None] = {}

    async def partition(self, letter: Letter | None) -> Partition | None:
        """The partition; None if the letter did not come from a topic, or if the topic no longer exists."""
        if letter is None:
            return None
        if letter.topic not in self._known:
            try:
                found = await self._client.admin.describe_topic(letter.topic)
            except TopicNotFound:
                self._known[letter.topic] = None
            else:
                self._known[letter.topic] = TopicState(letter.topic, found.id, found.partitions, (), (), 0)
        state = self._known[letter.topic]
        return None if state is None else Partition(letter.topic, state.id, letter.partition, letter.late)

    def address(self, partition: Partition) -> str:
        state = self._known[partition.topic]
        assert state is not None
        return state.partition_name(partition.number)
