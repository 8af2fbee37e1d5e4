"""Messages on their way out: a batch being filled or awaiting its answer, and the light objects that wait for it.

`Sent` and `SentMany` are not futures: nothing is scheduled, and nothing is reported, when they are dropped.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, overload

from pydanube.base.errors import DanubeError
from pydanube.base.limits import MESSAGE_OVERHEAD_BYTES
from pydanube.wire.batch import Batch, Codec, build

Result = TypeVar("Result")


class Receipt(NamedTuple):
    """What the broker promises for one message: where it is and how durable it is."""

    topic: str  # as the producer was opened: without its partition
    partition: int | None
    offset: int | None  # None if the topic keeps nothing, or if a repeat's place is no longer remembered
    durability: str  # none, buffered, fsynced or replicated:copies
    duplicate: bool = False  # the application's sequence was published before: nothing was added


class Way(Protocol):
    """Where a batch goes: one partition of a producer."""

    topic: str
    partition: int | None
    loop: AbstractEventLoop

    def hurry(self, outgoing: Outgoing) -> None:
        """Somebody waits for it: do not linger."""
        ...

    def obstacle(self) -> DanubeError | None:
        """Why nothing gets through now."""
        ...


class Outgoing:
    """One batch. `done` once it is acknowledged, has failed, or continues as `parts`; never two of them."""

    __slots__ = (
        "again",
        "attributes",
        "base_offset",
        "batch",
        "bytes",
        "count",
        "deadline",
        "delivery_times",
        "done",
        "duplicate",
        "durability",
        "error",
        "event_times",
        "first_sequence",
        "hurried",
        "keys",
        "numbered",
        "parts",
        "payloads",
        "reason",
        "together",
        "waiters",
        "watched",
        "way",
    )

    def __init__(self, way: Way) -> None:
        self.way = way
        self.payloads: list[bytes | None] = []
        self.bytes = 0
        # Sparse: row -> value, in the order of rows, so that messages without them pay nothing.
        self.keys: dict[int, bytes] = {}
        self.attributes: dict[int, Mapping[str, str]] = {}
        self.event_times: dict[int, int] = {}
        self.delivery_times: dict[int, int] = {}
        self.batch: Batch | None = None
        self.count = 0
        self.first_sequence = 0
        self.numbered: int | None = None  # its first sequence, if the application says it
        self.again = False  # the application repeats what it or its past self has sent
        self.duplicate = False
        self.deadline = 0.0
        self.base_offset: int | None = None
        self.durability = "none"
        self.done = False
        self.hurried = False
        self.error: DanubeError | None = None
        self.reason: DanubeError | None = None  # why it was not accepted the last time
        self.watched = False  # somebody waits or has waited, and so learns of the error
        self.together = False  # whoever waits for one of its messages waits for all
        self.parts: list[Outgoing] = []  # in the order of its rows
        self.waiters: list[Future[None]] = []

    def seal(self, publish_time: int, producer_id: int, first_sequence: int, codec: Codec) -> None:
        """Makes the batch of what was put in."""
        self.count = count = len(self.payloads)
        self.first_sequence = first_sequence
        self.batch = build(
            self.payloads,
            publish_time=publish_time,
            keys=_column(self.keys, count),
            attributes=_column(self.attributes, count),
            event_times=_column(self.event_times, count),
            delivery_times=_column(self.delivery_times, count),
            producer_id=producer_id,
            first_sequence=first_sequence if producer_id else 0,
            codec=codec,
        )
        self.payloads = []  # from here on the batch has them
        self.bytes = self.bytes or self.batch.size + count * MESSAGE_OVERHEAD_BYTES

    def renumber(self, first_sequence: int) -> None:
        """The same messages under other sequences: only for what the broker is known not to have taken."""
        batch = self.batch
        assert batch is not None
        self.first_sequence = first_sequence
        self.batch = build(
            batch.payloads(),
            publish_time=batch.publish_time,
            keys=batch.keys(),
            attributes=batch.attributes(),
            event_times=batch.event_times(),
            delivery_times=batch.delivery_times(),
            producer_id=batch.producer_id,
            first_sequence=first_sequence,
            codec=batch.codec,
        )

    def split(self) -> list[Outgoing]:
        """The same messages in smaller batches: each of the large ones alone, what lies between them together.

        Large is more than half of the largest: repeated, it comes to any limit in a few rounds.
        """
        batch = self.batch
        assert batch is not None
        sizes = [len(payload or b"") for payload in batch.payloads()]
        large = max(sizes) // 2
        first = 0
        for row in range(1, self.count + 1):
            if row == self.count or sizes[row - 1] > large or sizes[row] > large:
                self.parts.append(self._part(batch.slice(first, row - first), first))
                first = row
        self._finish()
        return self.parts

    def _part(self, batch: Batch, row: int) -> Outgoing:
        part = Outgoing(self.way)
        part.batch = batch
        part.count = batch.count
        part.bytes = batch.size + batch.count * MESSAGE_OVERHEAD_BYTES
        part.first_sequence = self.first_sequence + row
        part.again = self.again
        part.deadline = self.deadline
        part.together = self.together
        part.watched = self.watched and self.together
        return part

    def acknowledge(self, base_offset: int | None, durability: str, *, repeated: bool = False) -> None:
        self.base_offset = base_offset
        self.durability = durability
        self.duplicate = repeated and self.again  # what only the client repeats is no news to the application
        self._finish()

    def fail(self, error: DanubeError) -> None:
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        self.batch = None
        if self.waiters:
            for waiter in self.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self.waiters.clear()

    def wait(self) -> Generator[Any, None, None]:
        """Until it is done; raises what it failed of. Each waiter has a future of its own: one may be cancelled."""
        self.watched = True
        if not self.done:
            self.way.hurry(self)
            waiter: Future[None] = self.way.loop.create_future()
            self.waiters.append(waiter)
            yield from waiter
        if self.error is not None:
            raise fresh(self.error)

    def wait_for(self, row: int) -> Generator[Any, None, Receipt]:
        """The receipt of one message, wherever it goes."""
        yield from self.wait()
        for part in self.parts:
            if row < part.count:
                return (yield from part.wait_for(row))
            row -= part.count
        return self.receipt(row)

    def wait_for_all(self) -> Generator[Any, None, list[Outgoing]]:
        """Until every message of it is published; the batches that they went in."""
        yield from self.wait()
        went: list[Outgoing] = []
        for part in self.parts:
            went += yield from part.wait_for_all()
        return went or [self]

    def last_of(self, row: int) -> Outgoing:
        """The batch that one message goes in."""
        for part in self.parts:
            if row < part.count:
                return part.last_of(row)
            row -= part.count
        return self

    def receipt(self, row: int) -> Receipt:
        offset = None if self.base_offset is None else self.base_offset + row
        return Receipt(self.way.topic, self.way.partition, offset, self.durability, self.duplicate)


def _column(sparse: Mapping[int, Any], count: int) -> list[Any] | None:
    if not sparse:
        return None
    if len(sparse) == count:
        return list(sparse.values())
    return [sparse.get(row) for row in range(count)]


def fresh(error: DanubeError) -> DanubeError:
    """The same error for one more to raise: an exception that several raise would collect all their tracebacks."""
    return type(error)(*error.args)


class Handed(Coroutine[Any, Any, Result], Generic[Result]):
    """What `send` returns. `await` it, make a task of it, or drop it: the message goes all the same."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: Generator[Any, None, Result] | None = None  # of the task that drives it

    def __await__(self) -> Generator[Any, None, Result]:
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether `await` would return, or raise, at once."""
        raise NotImplementedError

    @property
    def reason(self) -> DanubeError | None:
        """Why it is not published yet, as far as the broker or the connection has said so."""
        raise NotImplementedError

    # For `create_task` and `TaskGroup`, which take coroutines only.

    def send(self, value: Any) -> Any:
        steps = self._steps
        if steps is None:
            steps = self._steps = self.__await__()
        return steps.send(value)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        error = kind if value is None else value
        return self._steps.throw(error if traceback is None else error.with_traceback(traceback))

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()


class Sent(Handed[Receipt]):
    """One message that was handed over."""

    __slots__ = ("_outgoing", "_row")

    def __init__(self, outgoing: Outgoing, row: int) -> None:
        self._steps = None
        self._outgoing = outgoing
        self._row = row

    def __await__(self) -> Generator[Any, None, Receipt]:
        return self._outgoing.wait_for(self._row)

    @property
    def done(self) -> bool:
        return self._outgoing.last_of(self._row).done

    @property
    def reason(self) -> DanubeError | None:
        return self._outgoing.last_of(self._row).reason or self._outgoing.way.obstacle()


class Receipts(Sequence[Receipt]):
    """The receipts of many messages in the order they were given, made when they are looked at."""

    __slots__ = ("_batches", "_count")

    def __init__(self, batches: list[Outgoing]) -> None:
        self._batches = batches
        self._count = sum(outgoing.count for outgoing in batches)

    @property
    def offsets(self) -> list[int | None]:
        found: list[int | None] = []
        for outgoing in self._batches:
            base, count = outgoing.base_offset, outgoing.count
            found += [None] * count if base is None else range(base, base + count)
        return found

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Receipt]:
        for outgoing in self._batches:
            yield from map(outgoing.receipt, range(outgoing.count))

    @overload
    def __getitem__(self, at: int) -> Receipt: ...

    @overload
    def __getitem__(self, at: slice) -> list[Receipt]: ...

    def __getitem__(self, at: int | slice) -> Receipt | list[Receipt]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(self._count))]
        left = at + self._count if at < 0 else at
        if left >= 0:
            for outgoing in self._batches:
                if left < outgoing.count:
                    return outgoing.receipt(left)
                left -= outgoing.count
        raise IndexError(at)

    def __repr__(self) -> str:
        return f"<Receipts of {self._count} messages>"


class SentMany(Handed[Receipts]):
    """Messages that were handed over together."""

    __slots__ = ("_batches",)

    def __init__(self, batches: list[Outgoing]) -> None:
        super().__init__()
        self._batches = batches

    def __await__(self) -> Generator[Any, None, Receipts]:
        for outgoing in self._leaves():
            outgoing.watched = True  # all of them: the first error is raised, the others are not said again
            if not outgoing.done:
                outgoing.way.hurry(outgoing)
        went: list[Outgoing] = []
        for outgoing in self._batches:
            went += yield from outgoing.wait_for_all()
        return Receipts(went)

    def _leaves(self) -> list[Outgoing]:
        """The batches that the messages go in now."""
        found, left = [], self._batches[::-1]
        while left:
            outgoing = left.pop()
            if outgoing.parts:
                left += reversed(outgoing.parts)
            else:
                found.append(outgoing)
        return found

    @property
    def done(self) -> bool:
        return all(outgoing.done for outgoing in self._leaves())

    @property
    def reason(self) -> DanubeError | None:
        waiting = [outgoing for outgoing in self._leaves() if not outgoing.done]
        return next((outgoing.reason or outgoing.way.obstacle() for outgoing in waiting), None)


OnError = Callable[[DanubeError, int], None]  # the error, and how many messages failed of it
