"""What an executor does: it reads its ranges, from segments or through the broker, and returns Arrow batches to Spark.

While one answer is decoded, the next is requested; the number of requests is bounded. The result is exactly the offsets
of the range, or an error: deleted messages are distinguished from offsets that were never used. If a segment cannot be
read, for whatever reason, the rest of it is read through the broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from pydanube.base.errors import DataLost, TopicNotFound
from pydanube.base.limits import KIB, MIB
from pydanube.client import Client
from pydanube.operations.channels import Read
from pydanube.spark.broker_link import PATIENCE_SECONDS, BrokerLink, link_to, with_retries
from pydanube.spark.columns import Columns
from pydanube.spark.decode import BatchDecoder
from pydanube.spark.direct import OpenSegment, Store, store_at
from pydanube.spark.options import Options
from pydanube.spark.plan import Job, Range
from pydanube.spark.topics import check_id, loss_handler
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Batches

if TYPE_CHECKING:
    import pyarrow as pa

READ_BYTES = 2 * MIB  # in one request; measured: less costs the broker more, and more costs the reader more
AHEAD_MAX = 8  # ranges whose first answer is requested in advance
SMALL_BYTES = 64 * KIB  # smaller batches are joined, because each costs Spark as much as a large one
JOINED_ROWS, JOINED_BYTES = 8_192, 4 * MIB
HANDED_BYTES = 8 * MIB  # bytes, uncompressed, of one batch for Spark, whose JVM holds it as well as its rows


class Answer(NamedTuple):
    batches: list[Batch]
    end: int  # of the partition; set if there are no batches


async def read(client: Client, partition: str, offset: int) -> Answer:
    answer = await with_retries(lambda: client.ask_any(Read(partition, offset, READ_BYTES)))
    if isinstance(answer, Batches):
        return Answer([Batch.parse(data) for data in answer.batches], 0)
    return Answer([], answer.end)


def read_job(options: Options, names: Sequence[str], job: Job) -> Iterator[pa.RecordBatch]:
    """All messages of the ranges, in their order. Small batches are joined before they are decoded."""
    decoding = None if options.value is None else BatchDecoder(names, options.value)
    link = link_to(options.url, options.ca_file, patience=PATIENCE_SECONDS)
    store = None if job.objects is None else store_at(link, job.objects)
    columns = Columns(names if decoding is None else decoding.needed, job.watermark)
    found = join_small(RangeReader(link, options.fail_on_data_loss, columns, store).all_of(job.ranges))
    return slice_large(found if decoding is None else map(decoding.batch, found))


class RangeReader:
    """Reads the ranges of one task."""

    def __init__(self, link: BrokerLink, fail_on_data_loss: bool, columns: Columns, store: Store | None = None) -> None:
        self._link = link
        self._lost = loss_handler(fail_on_data_loss)
        self._fails = fail_on_data_loss
        self._columns = columns
        self._store = store
        self._pending: deque[Future[Any]] = deque()  # of the current piece and the next ones
        self._by_broker = False  # whether anything of the current topic was read through the broker

    def all_of(self, ranges: Sequence[Range]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All batches, each with its size as received."""
        pieces = [piece for each in ranges for piece in (each.pieces() if self._store else [each._replace(stored=())])]
        asked = 0
        try:
            for at, each in enumerate(pieces):
                while asked < min(len(pieces), at + AHEAD_MAX):
                    self._pending.append(self._begin(pieces[asked]))
                    asked += 1
                try:
                    yield from self._piece(each)
                    last_of_topic = at + 1 == len(pieces) or pieces[at + 1].topic != each.topic
                    if last_of_topic and self._by_broker:
                        self._check_topic(each)
                        self._by_broker = False
                except TopicNotFound:
                    if self._fails:
                        raise DataLost(f"{each.topic} was deleted while it was being read") from None
                    self._lost(f"{each.topic} was deleted while it was being read")
        finally:
            for future in self._pending:
                future.cancel()

    def _begin(self, piece: Range) -> Future[Any]:
        if piece.stored and self._store is not None:
            return self._link.begin(self._store.open(piece.stored[0]))
        return self._ask(piece.name, piece.begin)

    def _ask(self, partition: str, offset: int) -> Future[Answer]:
        self._by_broker = True
        return self._link.begin(read(self._link.client, partition, offset))

    def _piece(self, wanted: Range) -> Iterator[tuple[int, pa.RecordBatch]]:
        future = self._pending.popleft()
        if wanted.stored and self._store is not None:
            wanted = yield from self._segment(self._store, wanted, future)
            if wanted.begin == wanted.end:
                return
            future = self._ask(wanted.name, wanted.begin)
        yield from self._range(wanted, future)

    def _segment(
        self, store: Store, wanted: Range, opening: Future[OpenSegment]
    ) -> Generator[tuple[int, pa.RecordBatch], None, Range]:
        """Reads as much as possible from the segment. Returns the rest of the range, which is empty on success."""
        rows = store.rows(wanted, opening, self._columns.in_segments)
        while True:
            try:
                found = next(rows, None)
            except Exception as error:  # the broker has the same messages
                store.failed(error)
                return wanted._replace(stored=())
            if found is None:
                return wanted._replace(begin=wanted.end)
            yield found.nbytes, self._columns.rows(found, wanted.topic, wanted.partition)
            wanted = wanted._replace(begin=found.column("offset")[-1].as_py() + 1)

    def _range(self, wanted: Range, future: Future[Answer]) -> Iterator[tuple[int, pa.RecordBatch]]:
        offset = wanted.begin
        while offset < wanted.end:
            try:
                answer = future.result()
            except BaseException:
                future.cancel()
                raise
            begin, offset = offset, self._next(wanted, offset, answer)
            if offset < wanted.end:
                future = self._ask(wanted.name, offset)
            answer.batches.reverse()
            while answer.batches:  # each is released once it is decoded: two megabytes may uncompress to gigabytes
                content = answer.batches.pop()
                first, last = max(begin, content.base_offset), min(content.last_offset, wanted.end - 1)
                if first <= last:
                    made = self._columns.batch(content, wanted.topic, wanted.partition, first, last)
                    yield content.size, made

    def _next(self, wanted: Range, offset: int, answer: Answer) -> int:
        """The offset after this answer. Offsets that it skips were never used, or are lost."""
        if answer.batches:
            base, after = answer.batches[0].base_offset, answer.batches[-1].last_offset + 1
        else:
            base = after = wanted.end
            if answer.end < wanted.end:
                self._lost(f"{wanted.name} now ends at {answer.end}, but had offsets up to {wanted.end - 1}")
        if base > offset and wanted.expected:
            first, _ = self._link.wait(with_retries(lambda: self._link.client.bounds(wanted.name)))
            if first > offset:
                gone = f"offsets {offset} to {min(first, wanted.end) - 1} of {wanted.name}"
                self._lost(f"{gone} were deleted before they were read")
        return max(after, offset)

    def _check_topic(self, wanted: Range) -> None:
        """Ids are never reused, so if the topic still has its id, nothing was read from another topic."""
        found = self._link.wait(with_retries(lambda: self._link.client.topic(wanted.topic)))
        check_id(wanted.topic, wanted.id, found.id)


def join_small(batches: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The same rows, with small batches joined. Sizes are uncompressed, because a kilobyte may contain megabytes."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for packed, batch in batches:
        bytes = max(packed, batch.nbytes)
        if bytes >= SMALL_BYTES and not small:
            yield batch
            continue
        small.append(batch)
        rows, size = rows + batch.num_rows, size + bytes
        if rows >= JOINED_ROWS or size >= JOINED_BYTES or bytes >= SMALL_BYTES:
            yield _one(small)
            small, rows, size = [], 0, 0
    if small:
        yield _one(small)


def slice_large(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, in slices that Spark can hold in memory. A larger row is a slice of its own."""
    for each in batches:
        if each.nbytes <= HANDED_BYTES:
            yield each
            continue
        rows = max(1, each.num_rows * HANDED_BYTES // each.nbytes)
        for start in range(0, each.num_rows, rows):
            yield each.slice(start, rows)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    if len(batches) == 1:
        return batches[0]
    [whole] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole
