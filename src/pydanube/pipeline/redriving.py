"""Dead letters of a pipeline, published to their topic once more, so that they go through it again.

Letters of a partition go in the order of their offsets, and the broker keeps up to which they went. Until it does,
whoever is killed and comes again sends them under the same name of a producer, so that none is published twice: a
letter that came since has a larger offset, and so a place behind those that were sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from heapq import heappush, heappushpop
from typing import NamedTuple

from pydanube.base.errors import TopicNotFound
from pydanube.client import Client
from pydanube.pipeline.flow import Flow
from pydanube.pipeline.letters import Letter, letters_of
from pydanube.spark.plan import TopicState
from pydanube.wire.batch import Batch
from pydanube.wire.batch import Message as Stored
from pydanube.wire.commands import Batches

PASS_MAX = 10_000  # letters of a partition that are held in memory; more take another pass over the table
CHUNK = 500  # that are published and then noted together
ORIGIN = "x-redriven-from"  # attribute: the topic and offset at which a message was before
REDRIVEN = "redriven"  # the part of a pipeline's record
Reached = dict[str, int]  # by topic and partition, late ones apart: letters up to this offset were redriven
Chosen = dict[str, list[Letter]]


class Redriven(NamedTuple):
    letters: int  # that were published; in a dry run those that would be, of each partition as far as one pass goes
    late: int  # left alone: they would be late again
    others: int  # left alone: they came from no topic, or theirs is gone


async def redrive(client: Client, flow: Flow, url: str, *, late: bool = False, dry_run: bool = False) -> Redriven:
    """All letters that were not redriven yet; with `late` also those that came too late."""
    reached = await _reached(client, flow.name)
    total, gone = 0, set[str]()
    last: Reached | None = None  # a letter that fails again meanwhile is behind it, and left for the next time
    while True:
        chosen, tardy, others, newest = _next(await letters_of(client, flow, url), reached, last, late)
        last = newest if last is None else last
        lost = sum(len(chosen.pop(place, ())) for place in gone)
        if dry_run or not chosen:
            return Redriven(total + sum(map(len, chosen.values())), tardy, others + lost)
        for place, found in chosen.items():
            for at in range(0, len(found), CHUNK):
                part = found[at : at + CHUNK]
                try:
                    await _publish(client, f"{flow.name} {place} {reached.get(place, -1)}", part)
                except TopicNotFound:
                    gone.add(place)
                    break
                reached[place] = part[-1].offset
                await _record(client, flow.name, json.dumps(reached))
                total += len(part)


def _next(
    letters: Iterable[Letter | None], reached: Reached, last: Reached | None, late: bool
) -> tuple[Chosen, int, int, Reached]:
    """The first of each partition, in order, each message once; how many are left alone; and where the letters end."""
    heaps: dict[str, list[tuple[int, Letter]]] = {}
    newest: Reached = {}
    tardy = others = 0
    for letter in letters:
        if letter is None:
            others += 1
            continue
        place = f"{letter.topic} {letter.partition}{' late' if letter.late else ''}"
        newest[place] = max(newest.get(place, -1), letter.offset)
        if letter.offset <= reached.get(place, -1) or (last is not None and letter.offset > last.get(place, -1)):
            continue
        if letter.late and not late:
            tardy += 1
            continue
        heap = heaps.setdefault(place, [])
        (heappush if len(heap) < PASS_MAX else heappushpop)(heap, (-letter.offset, letter))
    chosen = {
        place: {letter.offset: letter for _, letter in sorted(heap, reverse=True)} for place, heap in heaps.items()
    }
    return {place: list(found.values()) for place, found in chosen.items()}, tardy, others, newest


async def _publish(client: Client, source: str, letters: list[Letter]) -> None:
    """`source` says whose letters these are, and after which: sent again, those at the front are known."""
    described = await client.admin.describe_topic(letters[0].topic)
    state = TopicState(letters[0].topic, int(described["id"]), int(described["partitions"]), (), (), 0)
    place = state.place(letters[0].partition)
    name = f"redrive-{sha256(f'{source} {state.id}'.encode()).hexdigest()[:32]}"
    async with client.producer(place, name=name, create=False) as producer:
        for number, letter in enumerate(letters):
            found = await _original(client, place, letter)
            own = {} if found is None else dict(found.attributes or {})
            producer.send(
                letter.value,
                key=letter.key,
                attributes=own | {ORIGIN: f"{place} {letter.offset}"},
                event_time=letter.time if found is None or found.event_time is None else found.event_time,
                sequence=number,
            )
        await producer.flush()


async def _original(client: Client, place: str, letter: Letter) -> Stored | None:
    """The message itself, if the topic still has it: with its attributes and its time."""
    answer = await client.ask_any("read", {"topic": place, "offset": letter.offset, "bytes_max": 1})
    if not isinstance(answer, Batches):
        return None
    for data in answer.batches:
        for message in Batch.parse(data).messages():
            if message.offset == letter.offset and message.payload == letter.value:
                return message
    return None


async def _reached(client: Client, name: str) -> Reached:
    found = await _record(client, name, None)
    return {} if found is None else {str(place): int(offset) for place, offset in json.loads(found).items()}


async def _record(client: Client, name: str, text: str | None) -> str | None:
    fields = {"pipeline": name, "part": REDRIVEN, **({} if text is None else {"record": text})}
    found = (await client.ask("pipeline.record", fields))["record"]
    return None if found is None else str(found)
