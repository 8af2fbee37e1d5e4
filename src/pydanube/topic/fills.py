"""Parts of decided batches in one topic: which one is being filled, and which are filled (§44). Pure.

What a crash leaves is enough to continue: the record of a filling says where its rows begin and how many there will be,
and the rows themselves are numbered. So a part is filled as soon as its last row is confirmed; the record that says so
only saves its reader the counting. Until that record is durable, the messages from the first row on are needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from pydanube.base.errors import StateInvalid, TopicBusy
from pydanube.base.limits import FILLED_MAX
from pydanube.topic.records import Filled, Filling, FillsForgotten, FillState


class Fills:
    """Owned by the topic's state; changed only by `replay`."""

    def __init__(self) -> None:
        self.open: Filling | None = None  # the part that is being filled; there is never more than one
        self.ended = 0  # parts that were filled since the topic was opened
        self._filled: dict[bytes, int] = {}  # by writer, its last batch whose part is filled
        self._unsure: deque[tuple[int, int]] = deque()  # those whose end is not durable yet: how many it made, first

    def is_filled(self, sink: bytes, batch: int) -> bool:
        return self._filled.get(sink) == batch

    @property
    def needed_from(self) -> int | None:
        """The first offset that a restart needs to find out how far the last fillings have come."""
        if self._unsure:
            return self._unsure[0][1]
        return None if self.open is None else self.open.first

    # -- deciding ------------------------------------------------------------------------------------------------------

    def decide_begin(
        self, sink: bytes, batch: int, first: int, rows: int, is_open: Callable[[bytes, int], bool]
    ) -> list[Filling | FillsForgotten]:
        """The records that begin a part. `is_open` says whether a decision is still to be carried out; parts of the
        others are forgotten, because no one asks for them again."""
        gone = tuple(each for each, filled in self._filled.items() if not is_open(each, filled))
        if len(self._filled) - len(gone) >= FILLED_MAX:
            raise TopicBusy(f"{FILLED_MAX} batches are written here and not committed elsewhere yet")
        begin = Filling(sink, batch, first, rows)
        return [FillsForgotten(gone), begin] if gone else [begin]

    def decide_end(self) -> Filled:
        assert self.open is not None
        return Filled(self.open.sink, self.open.batch)

    # -- replaying -----------------------------------------------------------------------------------------------------

    def replay(self, record: Filling | Filled | FillsForgotten | FillState) -> None:
        match record:
            case Filling():
                self._begin(record)
            case Filled(sink, batch):
                if self.open is None or (self.open.sink, self.open.batch) != (sink, batch):
                    raise StateInvalid(f"batch {batch} is filled, but was not begun")
                self.ended += 1
                self._unsure.append((self.ended, self.open.first))
                self.open = None
                self._filled[sink] = batch
            case FillsForgotten(sinks):
                for sink in sinks:
                    self._filled.pop(sink, None)
            case FillState(sink, batch, _, 0):
                self._filled[sink] = batch
            case FillState():
                self._begin(Filling(*record))

    def _begin(self, filling: Filling) -> None:
        if self.open is not None:
            raise StateInvalid(f"batch {filling.batch} begins while batch {self.open.batch} is not filled")
        self.open = filling

    def snapshot(self) -> Iterator[FillState]:
        """As it is now, however late it is taken from the iterator."""
        found = [FillState(sink, batch, 0, 0) for sink, batch in self._filled.items()]
        return iter(found if self.open is None else [*found, FillState(*self.open)])

    # -- what is durable -----------------------------------------------------------------------------------------------

    def durable(self, ended: int) -> None:
        """Notes that the ends of the first `ended` parts are on disk."""
        while self._unsure and self._unsure[0][0] <= ended:
            self._unsure.popleft()
