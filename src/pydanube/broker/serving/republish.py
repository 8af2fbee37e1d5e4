"""Publishes the dead letters of one topic or partition again, each exactly once, whatever is killed in between.

All letters from one source to one target are published under one producer name. Before each batch is published, its
letters and their sequences are noted durably. After a crash, the next sequence of that producer in the target tells
whether the noted batch was published, whichever letters were added or removed meanwhile.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from pydanube.access.principals import SYSTEM, Principal
from pydanube.access.rights import Action
from pydanube.base.errors import BatchTooLarge, DanubeError, MessageTooLarge, TopicNotFound
from pydanube.base.limits import REFUSALS_NAMED_MAX
from pydanube.base.ranges import Ranges
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.dead_letter import ADDED
from pydanube.broker.topic.producer_sessions import Session
from pydanube.metadata.tables import REDRIVES, RedrivenBatch
from pydanube.ports.clock import Clock
from pydanube.ports.metadata import MetadataStore
from pydanube.ports.offload import Offload
from pydanube.storage.metadata.table import Table
from pydanube.wire.batch import Batch, Message, build

REFUSED = (MessageTooLarge, BatchTooLarge)  # the target will never accept such a letter


class Refusals:
    """Letters that stay because their target does not accept them: how many, and why for the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.named: list[tuple[int, str, str]] = []  # offset of the letter, topic, and the error

    def add(self, letter: Message, target: str, error: DanubeError) -> None:
        self.count += 1
        if len(self.named) < REFUSALS_NAMED_MAX:
            self.named.append((letter.offset, target, f"{error.code}: {error}"))


class _Way(NamedTuple):
    """An open target, and the producer session to publish with."""

    opened: OpenTopic
    session: Session


class Republisher:
    """Publishes the letters of one source, whose subscription records which are done. Only one may run at a time."""

    def __init__(
        self,
        topics: OpenTopics,
        metadata: MetadataStore,
        offload: Offload,
        clock: Clock,
        principal: Principal,
        source: OpenTopic,
        refusals: Refusals,
    ) -> None:
        self._topics, self._offload, self._clock = topics, offload, clock
        self._table = Table(metadata, REDRIVES)
        self._principal, self._refusals = principal, refusals
        self._source = f"{source.record.id}/{source.name.partition or 0}"
        self._ways: dict[str, _Way] = {}

    async def settle(self, host: SubscriptionHost) -> None:
        """Acknowledges a batch that was published but not acknowledged, because the broker was killed in between."""
        noted = self._table.get(self._source)
        if noted is None:
            return
        if noted.generation == host.generation:
            await host.ack(noted.generation, ranges_of(await self._published(noted)))
        await self._note(None)

    async def _published(self, noted: RedrivenBatch) -> list[int]:
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
            first = session.next_sequence
            await self._note(RedrivenBatch.of(target, opened.record.id, first, generation, offsets))
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
        else:
            self._topics.ask(self._principal, Action.TOPIC_PUBLISH, known.opened.name)
        return known

    def _name(self, target: str) -> str:
        return f"redrive-{sha256(f'{self._source} {target}'.encode()).hexdigest()[:32]}"

    async def _note(self, batch: RedrivenBatch | None) -> None:
        await self._table.write(self._source, batch)

    async def end(self) -> None:
        """Deletes the note, because everything published is acknowledged, and releases the producers."""
        if self._ways:
            await self._note(None)
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
