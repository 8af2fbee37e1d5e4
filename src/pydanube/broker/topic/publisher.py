"""Publishing to a reliable topic: each batch is appended once, though its producer may send it again (§13).

Owned by its topic. It never confirms what is not durable, and accepts nothing while it is unknown what is stored.
"""

from __future__ import annotations

from pydanube.base.counting import Traffic
from pydanube.base.errors import TopicBusy
from pydanube.base.limits import DEDUP_WINDOW_BATCHES, HEADERS_UNREAD_BYTES
from pydanube.broker.limits.quotas import bytes_from
from pydanube.broker.topic.backlog import extents_of
from pydanube.broker.topic.core import TopicCore
from pydanube.broker.topic.producer_sessions import Session, Sessions
from pydanube.broker.topic.repeated_batches import RepeatedBatches
from pydanube.broker.topic.served import Receipt
from pydanube.topic.dedup import Duplicate, Renewal
from pydanube.wire.batch import Batch


class Publisher:
    """Also knows which producers are connected."""

    def __init__(self, core: TopicCore) -> None:
        self.sessions = Sessions()
        self.inbound = Traffic()  # published here
        self.repeated = RepeatedBatches(lambda: core.ledger.written_end)
        self._core = core

    async def attach(self, producer: str, *, fresh: bool, temporary: bool, renewal: Renewal | None) -> Session:
        """See `Topic.attach`."""
        core = self._core
        core.check_certain()
        core.log.check()
        table, clock = core.state.producers, core.clock
        new_to_all = not len(table)
        records = table.decide_attach(
            producer,
            clock.append_time(),
            renewal=renewal,
            held=self.sessions,
            fresh=fresh,
            temporary=temporary,
            forgets=clock.trusted(),
        )
        durable = core.log.apply(*records) if records else core.log.barrier()
        session = self._session(producer)  # taken now, because another session may attach while this becomes durable
        await durable
        last = table.get(session.producer).last_offset
        if last is not None:
            await self.repeated.confirmation(last)  # a crash could still lose it, and the producer continues after it
        needed = core.state.needed_from() if new_to_all else None
        if needed is not None and bytes_from(extents_of(core.ledger.stream, needed), needed) > HEADERS_UNREAD_BYTES:
            core.log.compact_soon()  # what was published before producers had names need not be read again
        core.check_certain()  # with a number that is too low, the producer's next messages would look like old ones
        return self._session(producer)._replace(epoch=session.epoch)

    def _session(self, producer: str) -> Session:
        known = self._core.state.producers.find(producer)
        assert known is not None
        return Session(known.id, known.epoch, known.next_sequence)

    def publish(self, batch: Batch, producer_epoch: int) -> Receipt:
        """Appends a batch, or finds the offset that it has already."""
        core = self._core
        core.check_certain()
        batch.check_published()
        producer = batch.producer_id
        if not producer:
            return self._append(batch.anonymous() if batch.first_sequence else batch)  # a sequence would mark a job's
        producers = core.state.producers
        decision = producers.decide(producer, producer_epoch, batch.first_sequence, batch.count)
        if isinstance(decision, Duplicate):
            confirmed = self.repeated.confirmation(decision.base_offset + batch.count - 1)
            return Receipt(decision.base_offset, confirmed, duplicate=True)
        if producers.unconfirmed(producer, core.ledger.written_end) >= DEDUP_WINDOW_BATCHES:
            raise TopicBusy(f"{DEDUP_WINDOW_BATCHES} batches of the producer are not confirmed yet")
        receipt = self._append(batch)
        producers.appended(producer, batch.first_sequence, batch.count, receipt.offset, core.clock.append_time())
        return receipt

    def append_reserved(self, batch: Batch) -> Receipt:
        """For a job: without a producer, and with the sequence that marks its rows."""
        self._core.check_certain()
        return self._append(batch)

    def _append(self, batch: Batch) -> Receipt:
        stamped, confirmed = self._core.ledger.append(batch)
        self._core.log.note_data(stamped.size)
        self.inbound.add(batch.count, stamped.size)
        return Receipt(stamped.base_offset, confirmed)

    def forget_gone(self, now: float) -> None:
        """Nothing is kept of producers that left for good; `now` is in seconds of the monotonic clock."""
        core = self._core
        core.log.check()
        records = core.state.producers.decide_release([*self.sessions.take_gone(core.state.producers, now)])
        if records:
            core.log.apply(*records)
