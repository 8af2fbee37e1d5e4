"""Publishing to a reliable topic: each batch is appended once, even if its producer sends it again (§13).

Owned by its topic. It confirms only what is durable, and accepts nothing while it is unknown what is stored.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable

from pydanube.base.counting import Traffic
from pydanube.base.errors import TopicBusy
from pydanube.base.limits import DEDUP_WINDOW_BATCHES, HEADERS_UNREAD_BYTES, REPEATS_WAITING_MAX
from pydanube.broker.limits.quotas import bytes_from
from pydanube.broker.topic.backlog import extents_of
from pydanube.broker.topic.core import TopicCore
from pydanube.broker.topic.producer_sessions import Session, Sessions
from pydanube.broker.topic.served import Receipt
from pydanube.storage.futures import settle
from pydanube.topic.dedup import Duplicate, Renewal
from pydanube.wire.batch import Batch


class RepeatedBatches:
    """Batches that were sent again before the first copy was confirmed: they are answered together with it.

    `written_end` returns the end of what is durable.
    """

    def __init__(self, written_end: Callable[[], int]) -> None:
        self._written_end = written_end
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, Future[None]]] = []  # the last offset of the first copy, and its answer

    def confirmation(self, last: int) -> Future[None]:
        """Done when the batch is confirmed that was appended earlier and ends at `last`."""
        answer: Future[None] = self._loop.create_future()
        if last < self._written_end():
            answer.set_result(None)
        elif len(self._waiting) >= REPEATS_WAITING_MAX:
            raise TopicBusy(f"{len(self._waiting)} repeated batches are waiting for the first one to be confirmed")
        else:
            self._waiting.append((last, answer))
        return answer

    def answer(self, error: BaseException | None) -> None:
        """Called when batches were confirmed, or failed."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for last, answer in waiting:
            if last < self._written_end():
                settle(answer, None)
            elif error is not None:
                settle(answer, error)
            elif not answer.done():
                self._waiting.append((last, answer))


class Publisher:
    """Appends batches, and knows which producers are connected."""

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
        session = self._session(producer)  # now, because another session may attach while this becomes durable
        await durable
        last = table.get(session.producer).last_offset
        if last is not None:
            await self.repeated.confirmation(last)  # a crash could still lose it, and the producer continues after it
        needed = core.state.producers_from() if new_to_all else None
        if needed is not None and bytes_from(extents_of(core.ledger.stream, needed), needed) > HEADERS_UNREAD_BYTES:
            core.log.compact_soon()  # a snapshot saves reading what was published before producers had names
        core.check_certain()  # with a number that is too low, its next messages would look like duplicates
        return self._session(producer)._replace(epoch=session.epoch)

    def _session(self, producer: str) -> Session:
        known = self._core.state.producers.find(producer)
        assert known is not None
        return Session(known.id, known.epoch, known.next_sequence)

    def publish(self, batch: Batch, producer_epoch: int) -> Receipt:
        """Appends a batch, or finds the offset that it already has."""
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

    def append_rows(self, batch: Batch) -> Receipt:
        """Appends rows of a job: without a producer, and with the sequence that marks them."""
        self._core.check_certain()
        return self._append(batch)

    def _append(self, batch: Batch) -> Receipt:
        stamped, confirmed = self._core.ledger.append(batch)
        self._core.log.note_data(stamped.size)
        self.inbound.add(batch.count, stamped.size)
        return Receipt(stamped.base_offset, confirmed)

    def forget_gone(self, now: float) -> None:
        """Forgets producers that left for good; `now` is in seconds of the monotonic clock."""
        core = self._core
        core.log.check()
        records = core.state.producers.decide_release([*self.sessions.take_gone(core.state.producers, now)])
        if records:
            core.log.apply(*records)
