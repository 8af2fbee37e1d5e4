"""Dead letters of a pipeline, published to their topic once more, so that they go through it again.

Letters of a partition go in the order of their offsets, and the broker keeps up to which they went. Until it does,
whoever is killed and comes again sends them under the same name of a producer, so that none is published twice: a
letter that came since has a larger offset, and so a place behind those that were sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from heapq import heappop, heappush
from typing import NamedTuple

from pydanube.base.errors import TopicNotFound
from pydanube.base.limits import MIB
from pydanube.client import Client
from pydanube.pipeline.flow import Flow
from pydanube.pipeline.keeping import Marks
from pydanube.pipeline.letters import Letter, letters_of
from pydanube.spark.plan import TopicState

PASS_LETTERS_MAX = 10_000  # of a partition that are held in memory; more take another pass over the table
PASS_BYTES_MAX = 64 * MIB  # of all partitions; one letter is always held, so that every pass gets further
CHUNK = 500  # that are published and then noted together
ORIGIN = "x-redriven-from"  # attribute: the topic and offset at which a message was before


class Redriven(NamedTuple):
    letters: int  # that were published; in a dry run those that would be, as far as one pass goes
    late: int  # left alone: they would be late again
    others: int  # left alone: they came from no topic, or theirs is gone
    more: bool = False  # of a dry run: there are more letters than one pass takes


class Place(NamedTuple):
    """A partition of a topic as it is now: one that was deleted and made again is another one. Late ones are apart."""

    topic: str
    id: int
    partition: int
    late: bool

    @property
    def key(self) -> str:
        return f"{self.id}.{self.partition}{'.late' if self.late else ''}"


async def redrive(client: Client, flow: Flow, url: str, *, late: bool = False, dry_run: bool = False) -> Redriven:
    """All letters that were not redriven yet; with `late` also those that came too late."""
    marks, topics = Marks(client, flow.name), _Topics(client)
    total, gone = 0, set[Place]()
    last: dict[Place, int] | None = None  # a letter that fails again meanwhile is behind it: left for the next time
    while True:
        found = _Pass(marks, last, gone, late=late)
        async for letters in letters_of(client, flow, url):
            placed = [(await topics.place(letter), letter) for letter in letters]
            await marks.load(place.key for place, _ in placed if place is not None)
            found.take(placed)
        last = found.newest if last is None else last
        chosen = found.chosen()
        if dry_run or not chosen:
            return Redriven(total + sum(map(len, chosen.values())), found.tardy, found.others, bool(found.cut))
        for place, some in chosen.items():
            for at in range(0, len(some), CHUNK):
                part = some[at : at + CHUNK]
                name = _name(f"{flow.name} {place.key} {marks.reached(place.key)}")
                try:
                    await _publish(client, name, topics.address(place), part)
                except TopicNotFound:
                    gone.add(place)
                    break
                await marks.note(place.key, part[-1].offset)
                total += len(part)


class _Pass:
    """The first letters of each partition, each message once, as many as memory is meant for."""

    def __init__(self, marks: Marks, last: dict[Place, int] | None, gone: set[Place], *, late: bool) -> None:
        self._marks, self._last, self._gone, self._late = marks, last, gone, late
        self._heaps: dict[Place, list[tuple[int, int, Letter]]] = {}  # the last one on top
        self._held: set[tuple[Place, int]] = set()
        self._bytes = 0
        self._number = 0
        self.cut: dict[Place, int] = {}  # from this offset on, letters are left for the next pass
        self.newest: dict[Place, int] = {}
        self.tardy = self.others = 0

    def take(self, letters: Iterable[tuple[Place | None, Letter | None]]) -> None:
        for place, letter in letters:
            if place is None or letter is None or place in self._gone:
                self.others += 1
                continue
            offset = letter.offset
            self.newest[place] = max(self.newest.get(place, -1), offset)
            wanted = offset > self._marks.reached(place.key)
            if not wanted or (self._last is not None and offset > self._last.get(place, -1)):
                continue
            if letter.late and not self._late:
                self.tardy += 1
            elif (place, offset) not in self._held and offset < self.cut.get(place, offset + 1):
                self._hold(place, letter)

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


def _name(source: str) -> str:
    """`source` says whose letters these are, and after which: sent again, those at the front are known."""
    return f"redrive-{sha256(source.encode()).hexdigest()[:32]}"


async def _publish(client: Client, name: str, address: str, letters: list[Letter]) -> None:
    async with client.producer(address, name=name, create=False) as producer:
        for number, letter in enumerate(letters):
            producer.send(
                letter.value,
                key=letter.key,
                attributes={**letter.attributes, ORIGIN: f"{address} {letter.offset}"},
                event_time=letter.time if letter.event_time is None else letter.event_time,
                sequence=number,
            )
        await producer.flush()
