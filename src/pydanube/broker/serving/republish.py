"""Dead letters of one topic or partition, published again: each once, whatever is killed in between.

All letters from here to one target go under one producer name. Which letters follow under which sequences is noted
before they are published, a batch at a time. The target then knows how far it went: its producer's next sequence says
whether a noted batch is there, whichever letters came or went meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

from pydanube.access.principals import SYSTEM, Principal
from pydanube.access.rights import Action
from pydanube.base.errors import BatchTooLarge, DanubeError, MessageTooLarge, TopicNotFound
from pydanube.base.limits import REFUSALS_NAMED_MAX
from pydanube.base.ranges import Ranges
from pydanube.broker.directory.notes import Notes
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.dead_letter import ADDED
from pydanube.broker.topic.producer_sessions import Session
from pydanube.ports.clock import Clock
from pydanube.ports.offload import Offload
from pydanube.wire.batch import Batch, Message, build

REFUSED = (MessageTooLarge, BatchTooLarge)  # a letter that its target does not take, whenever it is tried
_FOLDER = "redrive/"


class Refusals:
    """Letters that stay because their target does not take them: how many, and why the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.named: list[dict[str, str | int]] = []

    def add(self, letter: Message, target: str, error: DanubeError) -> None:
        self.count += 1
        if len(self.named) < REFUSALS_NAMED_MAX:
            self.named.append({"offset": letter.offset, "topic": target, "error": f"{error.code}: {error}"})


@dataclass(frozen=True, slots=True)
class Noted:
    """A batch that may have been published: the letters at these offsets, from a sequence on."""

    target: str
    topic: int  # its id: one that was deleted and made again has none of them
    first_sequence: int
    generation: int  # of the cursor: after a seek they are wanted again
    offsets: list[int]

    def encode(self) -> bytes:
        steps = [after - before for before, after in zip([0, *self.offsets], self.offsets, strict=False)]
        found = [self.target, self.topic, self.first_sequence, self.generation, steps]
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, text: bytes) -> Noted:
        target, topic, first, generation, steps = json.loads(text)
        return cls(target, topic, first, generation, list(accumulate(steps)))


class _Way(NamedTuple):
    """To a target."""

    opened: OpenTopic
    session: Session


class Republisher:
    """Of one topic of letters and the subscription that says which are done. Only one at a time may work."""

    def __init__(
        self,
        topics: OpenTopics,
        notes: Notes,
        offload: Offload,
        clock: Clock,
        principal: Principal,
        source: OpenTopic,
        refusals: Refusals,
    ) -> None:
        self._topics, self._notes, self._offload, self._clock = topics, notes, offload, clock
        self._principal, self._refusals = principal, refusals
        self._source = f"{source.record.id}/{source.name.partition or 0}"
        self._ways: dict[str, _Way] = {}

    async def settle(self, host: SubscriptionHost) -> None:
        """What was published and not acknowledged, because whoever did it was killed, is acknowledged now."""
        text = self._notes.get(_FOLDER + self._source)
        if text is None:
            return
        noted = Noted.decode(text)
        if noted.generation == host.generation:
            await host.ack(noted.generation, ranges_of(await self._published(noted)))
        await self._notes.put(_FOLDER + self._source, None)

    async def _published(self, noted: Noted) -> list[int]:
        try:
            opened = await self._topics.open(SYSTEM, Action.TOPIC_PUBLISH, noted.target)
        except TopicNotFound:
            return []
        if opened.record.id != noted.topic:
            return []
        session = await opened.reliable.attach(self._name(noted.target), fresh=True)
        return noted.offsets if session.next_sequence > noted.first_sequence else []

    async def publish(self, host: SubscriptionHost, generation: int, target: str, letters: list[Message]) -> int:
        """Says how many were published; the others were refused. All that were are acknowledged when it returns."""
        opened, session = await self._way(target)
        offsets, now = [letter.offset for letter in letters], self._clock.wall()
        try:
            batch = await self._offload.run(_batch_of, letters, now, session)
            opened.check_messages(batch)
            batch.check_published()
            noted = Noted(target, opened.record.id, session.next_sequence, generation, offsets)
            await self._notes.put(_FOLDER + self._source, noted.encode())
            receipt = opened.publish(batch, session.epoch)
        except REFUSED as error:
            if half := len(letters) // 2:  # the others of them go all the same
                parts = letters[:half], letters[half:]
                return sum([await self.publish(host, generation, target, part) for part in parts])
            self._refusals.add(letters[0], target, error)
            return 0
        await receipt.confirmed
        following = session._replace(next_sequence=session.next_sequence + len(letters))
        self._ways[target] = _Way(opened, following)
        await host.ack(generation, ranges_of(offsets))
        return len(letters)

    async def _way(self, target: str) -> _Way:
        known = self._ways.get(target)
        if known is None or known.opened.ended is not None:
            opened = await self._topics.open(self._principal, Action.TOPIC_PUBLISH, target)
            # whoever has the name notes what goes under it: nothing is repeated
            session = await opened.reliable.attach(self._name(target), fresh=True)
            known = self._ways[target] = _Way(opened, session)
        return known

    def _name(self, target: str) -> str:
        return f"redrive-{sha256(f'{self._source} {target}'.encode()).hexdigest()[:32]}"

    async def end(self) -> None:
        """All that was published is acknowledged, so nobody asks about it again."""
        if self._ways:
            await self._notes.put(_FOLDER + self._source, None)
        for opened, session in self._ways.values():
            opened.reliable.sessions.release(session)


def ranges_of(offsets: list[int]) -> list[tuple[int, int]]:
    found = Ranges()
    for offset in offsets:
        found.add(offset, offset)
    return list(found)


def _batch_of(letters: list[Message], now: int, session: Session) -> Batch:
    own = [
        {name: text for name, text in (letter.attributes or {}).items() if name not in ADDED} or None
        for letter in letters
    ]
    return build(
        [letter.payload for letter in letters],
        publish_time=now,
        keys=[letter.key for letter in letters],
        event_times=[letter.event_time for letter in letters],
        attributes=own,
        schema_ids=[letter.schema_id for letter in letters],
        schema_versions=[letter.schema_version for letter in letters],
        producer_id=session.producer,
        first_sequence=session.next_sequence,
    )
