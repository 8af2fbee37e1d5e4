"""Dead letters of a pipeline, published to their topic once more, so that they go through it again.

Letters of a partition go under one name of a producer. Which of them follow, and under which sequences, is noted with
the broker before they are published: whoever is killed and comes again finds out from the topic how many of those
noted are there, whatever letters came since. The broker also keeps the offsets of those that were redriven. A run that
starts while another is under way takes over from it: the other one can note nothing more, and so publishes nothing.
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
from pydanube.pipeline.run.keeping import OVERTAKEN, Marks, Pending
from pydanube.pipeline.run.spans import exact
from pydanube.pipeline.spec.flow import Flow
from pydanube.spark.plan import TopicState

PASS_LETTERS_MAX = 10_000  # of a partition that are held in memory; more take another pass over the table
PASS_BYTES_MAX = 64 * MIB  # of all partitions; one letter is always held, so that every pass gets further
CHUNK = 500  # that are published and then noted together
REFUSED = (MessageTooLarge, BatchTooLarge)  # a letter that its topic does not take, whenever it is tried
ORIGIN = "x-redriven-from"  # attribute: the topic and offset at which a message was before


class Redriven(NamedTuple):
    letters: int  # that were published; in a dry run those that would be, as far as one pass goes
    late: int  # left alone: they would be late again
    others: int  # left alone: they came from no topic, or theirs is gone
    more: bool = False  # of a dry run: there are more letters than one pass takes
    unsure: int = 0  # left alone: about as many were perhaps not redriven, and nobody knows which
    refused: int = 0  # left alone: their topic does not take them
    refusals: tuple[str, ...] = ()  # the first of them, and why


class Place(NamedTuple):
    """A partition of a topic as it is now: one that was deleted and made again is another one. Late ones are apart."""

    topic: str
    id: int
    partition: int
    late: bool

    @property
    def key(self) -> str:
        return f"{self.id}.{self.partition}{'.late' if self.late else ''}"


async def redrive(
    client: Client, flow: Flow, url: str, *, late: bool = False, again: bool = False, dry_run: bool = False
) -> Redriven:
    """All letters that were not redriven yet; with `late` also those that came too late, and with `again` also those
    of which nobody knows whether they were.
    """
    work = _Redrive(client, flow)
    if not dry_run:
        await work.settle()
    last: dict[Place, int] | None = None  # a letter that fails again meanwhile is behind it: left for the next time
    while True:
        found = _Pass(work, last, late=late, again=again)
        async for letters in letters_of(client, flow, url):
            placed = [(await work.topics.place(letter), letter) for letter in letters]
            await work.marks.load(place.key for place, _ in placed if place is not None)
            found.take(placed)
        last = found.newest if last is None else last
        chosen = found.chosen()
        if dry_run or not chosen:
            count = work.count + sum(map(len, chosen.values()))
            refused = len(work.refusals), tuple(work.refusals[:REFUSALS_NAMED_MAX])
            return Redriven(count, found.tardy, found.others, bool(found.cut), found.unsure, *refused)
        for place, some in chosen.items():
            await work.publish(place, some)


class _Redrive:
    """One run of it."""

    def __init__(self, client: Client, flow: Flow) -> None:
        self._client, self._pipeline = client, flow.name
        self.marks, self.topics = Marks(client, flow.name), _Topics(client)
        self.gone = set[Place]()
        self.tried = set[tuple[Place, int]]()  # letters that this run leaves alone though no mark says so
        self.refusals: list[str] = []
        self.count = 0

    async def settle(self) -> None:
        """What was published before, by somebody who was killed or is now stopped before noting it, is noted."""
        pending = await self.marks.take_over()
        if not pending.offsets:
            return
        await self.marks.load([pending.key])
        known = self.marks.redriven(pending.key)
        if all(known.find(offset) for offset in pending.offsets):
            return
        try:
            async with self._producer(pending.key, pending.address) as producer:
                there = _next_sequence(producer) - pending.first_sequence
        except (TopicNotFound, PartitionMissing):
            return
        if there > 0:
            await self.marks.add(pending.key, pending.offsets[:there])

    async def publish(self, place: Place, letters: list[Letter]) -> None:
        size = CHUNK
        while letters:
            part = letters[:size]
            try:
                sent, error = await self._publish(place, part)
            except (TopicNotFound, PartitionMissing):
                self.gone.add(place)
                return
            except ProducerFenced as fenced:  # those that are there, whoever took over has counted
                raise RedriveOvertaken(OVERTAKEN.format(self._pipeline)) from fenced
            if sent:
                spans = self.marks.redriven(place.key)
                self.tried.update((place, each.offset) for each in part[:sent] if spans.find(each.offset))
                await self.marks.add(place.key, [letter.offset for letter in part[:sent]])
            self.count += sent
            letters = letters[sent:]
            if error is not None and len(part) == 1:
                self.tried.add((place, part[0].offset))
                self.refusals.append(f"{self.topics.address(place)} offset {part[0].offset}: {error.code}: {error}")
                letters = letters[1:]
            size = CHUNK if error is None or len(part) == 1 else 1  # alone, it shows whether it is this one

    async def _publish(self, place: Place, letters: list[Letter]) -> tuple[int, DanubeError | None]:
        """How many from the first on were published, and why the next one was not. None behind it was."""
        address = self.topics.address(place)
        await self.marks.check()  # whoever opens the producer fences the run that has it
        async with self._producer(place.key, address) as producer:
            first = _next_sequence(producer)
            await self.marks.note(Pending(place.key, address, first, [letter.offset for letter in letters]))
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
        """One name for each partition. Whoever has it notes what goes under it, so nothing is repeated unknowingly."""
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
    """The first letters of each partition, each message once, as many as memory is meant for."""

    def __init__(self, work: _Redrive, last: dict[Place, int] | None, *, late: bool, again: bool) -> None:
        self._work, self._last, self._late, self._again = work, last, late, again
        self._doubtful: dict[tuple[Place, tuple[int, int, int]], int] = {}  # letters in ranges that are not exact
        self._heaps: dict[Place, list[tuple[int, int, Letter]]] = {}  # the last one on top
        self._held: set[tuple[Place, int]] = set()
        self._bytes = 0
        self._number = 0
        self.cut: dict[Place, int] = {}  # from this offset on, letters are left for the next pass
        self.newest: dict[Place, int] = {}
        self.tardy = self.others = 0

    def take(self, letters: Iterable[tuple[Place | None, Letter | None]]) -> None:
        for place, letter in letters:
            if place is None or letter is None or place in self._work.gone:
                self.others += 1
                continue
            offset = letter.offset
            self.newest[place] = max(self.newest.get(place, -1), offset)
            if self._is_done(place, offset) or (self._last is not None and offset > self._last.get(place, -1)):
                continue
            if letter.late and not self._late:
                self.tardy += 1
            elif (place, offset) not in self._held and offset < self.cut.get(place, offset + 1):
                self._hold(place, letter)

    def _is_done(self, place: Place, offset: int) -> bool:
        if (place, offset) in self._work.tried:
            return True
        span = self._work.marks.redriven(place.key).find(offset)
        if span is None or exact(span):
            return span is not None
        self._doubtful[place, span] = self._doubtful.get((place, span), 0) + 1
        return not self._again

    @property
    def unsure(self) -> int:
        return 0 if self._again else sum(max(0, found - span[2]) for (_, span), found in self._doubtful.items())

    def _hold(self, place: Place, letter: Letter) -> None:
        heap = self._heaps.setdefault(place, [])
        self._number += 1
        heappush(heap, (-letter.offset, self._number, letter))
        self._held.add((place, letter.offset))
        self._bytes += letter.size
        if len(heap) > PASS_LETTERS_MAX or (self._bytes > PASS_BYTES_MAX and len(self._held) > 1):
            _, _, over = heappop(heap)
            self._held.discard((place, over.offset))
            self._bytes -= over.size
            self.cut[place] = over.offset

    def chosen(self) -> dict[Place, list[Letter]]:
        """In the order of their offsets."""
        found = {place: [letter for _, _, letter in sorted(heap, reverse=True)] for place, heap in self._heaps.items()}
        return {place: letters for place, letters in found.items() if letters}


class _Topics:
    """Those that letters came from, as they are now."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, TopicState | None] = {}

    async def place(self, letter: Letter | None) -> Place | None:
        """None if it came from no topic, or its topic is gone."""
        if letter is None:
            return None
        if letter.topic not in self._known:
            try:
                found = await self._client.admin.describe_topic(letter.topic)
            except TopicNotFound:
                self._known[letter.topic] = None
            else:
                self._known[letter.topic] = TopicState(
                    letter.topic, int(found["id"]), int(found["partitions"]), (), (), 0
                )
        state = self._known[letter.topic]
        return None if state is None else Place(letter.topic, state.id, letter.partition, letter.late)

    def address(self, place: Place) -> str:
        state = self._known[place.topic]
        assert state is not None
        return state.place(place.partition)
