"""What `send` and `send_many` return: results that can be awaited, turned into a task, or ignored, and receipts.

A result is not a future: nothing is scheduled, and nothing is reported, when it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from pydanube.base.errors import DanubeError
from pydanube.client.outgoing_batch import OutgoingBatch, Receipt

Result = TypeVar("Result")


class SendResult(Coroutine[Any, Any, Result], Generic[Result]):
    """The result of a send. `await` it, make a task of it, or ignore it: the message is sent in any case."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: Generator[Any, None, Result] | None = None  # set by a task that runs this as a coroutine

    def __await__(self) -> Generator[Any, None, Result]:
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether `await` would return or raise at once."""
        raise NotImplementedError

    @property
    def reason(self) -> DanubeError | None:
        """Why it is not published yet, if that is known."""
        raise NotImplementedError

    # For `create_task` and `TaskGroup`, which accept only coroutines.

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


class SentMessage(SendResult[Receipt]):
    """The result of sending one message."""

    __slots__ = ("_outgoing", "_row")

    def __init__(self, outgoing: OutgoingBatch, row: int) -> None:
        self._steps = None
        self._outgoing = outgoing
        self._row = row

    def __await__(self) -> Generator[Any, None, Receipt]:
        return self._outgoing.wait_for(self._row)

    @property
    def done(self) -> bool:
        return self._outgoing.current_batch(self._row).done

    @property
    def reason(self) -> DanubeError | None:
        return self._outgoing.current_batch(self._row).reason or self._outgoing.partition.obstacle()


class Receipts(Sequence[Receipt]):
    """The receipts of many messages, in order; each is created when it is accessed."""

    __slots__ = ("_batches", "_count")

    def __init__(self, batches: list[OutgoingBatch]) -> None:
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


class SentMessages(SendResult[Receipts]):
    """The result of sending many messages together."""

    __slots__ = ("_batches",)

    def __init__(self, batches: list[OutgoingBatch]) -> None:
        super().__init__()
        self._batches = batches

    def __await__(self) -> Generator[Any, None, Receipts]:
        for outgoing in self._leaves():
            outgoing.awaited = True  # all: the first error is raised, and the others are not reported again
            if not outgoing.done:
                outgoing.partition.flush_soon(outgoing)
        went: list[OutgoingBatch] = []
        for outgoing in self._batches:
            went += yield from outgoing.wait_for_all()
        return Receipts(went)

    def _leaves(self) -> list[OutgoingBatch]:
        """The batches that the messages are in now."""
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
        return next((outgoing.reason or outgoing.partition.obstacle() for outgoing in waiting), None)


OnError = Callable[[DanubeError, int], None]  # the error, and the number of messages that failed
