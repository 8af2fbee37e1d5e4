"""Publishes the dead letters of one topic or partition again, each exactly once, whatever is killed in between.

All letters from one source to one target are published under one producer name. Before each batch is published, its
letters and their sequences are noted durably. After a crash, the next sequence of that producer in the target tells
whether the noted batch was published, whichever letters were added or removed meanwhile.
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

REFUSED = (MessageTooLarge, BatchTooLarge)  # the target will never accept such a letter
_FOLDER = "redrive/"


class Refusals:
    """Letters that stay because their target does not accept them: how many, and why for the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.named: list[dict[str, str | int]] = []

    def add(self, letter: Message, target: str, error: DanubeError) -> None:
        self.count += 1
        if len(self.named) < REFUSALS_NAMED_MAX:
            self.named.append({"offset": letter.offset, "topic": target, "error": f"{error.code}: {error}"})


@dataclass(frozen=True, slots=True)
class Noted:
    """A batch that may have been published: the offsets of its letters, and its first sequence."""

    target: str
    topic: int  # its id: a topic that was deleted and created again has none of them
    first_sequence: int
    generation: int  # of the cursor: after a seek, the letters have to be published again
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
    """An open target, and the producer session to publish with."""

    opened: OpenTopic
    session: Session


class Republisher:
    """Publishes the letters of one source, whose subscription records which are done. Only one may run at a time."""

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
        """Acknowledges a batch that was published but not acknowledged, because the broker was killed in between."""
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
        """Publishes letters and acknowledges them; returns how many were published. The others were refused."""
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
            if half := len(letters) // 2:  # the letters that fit are still published
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
            # `fresh`: everything under this name is noted before it is published, so nothing is repeated
            session = await opened.reliable.attach(self._name(target), fresh=True)
            known = self._ways[target] = _Way(opened, session)
        return known

    def _name(self, target: str) -> str:
        return f"redrive-{sha256(f'{self._source} {target}'.encode()).hexdigest()[:32]}"

    async def end(self) -> None:
        """Deletes the note, because everything published is acknowledged, and releases the producers."""
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
