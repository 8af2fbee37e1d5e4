"""What a topic remembers besides its messages: subscriptions with their cursors, producers, and what jobs have written.
Decide, log, replay.

`decide_*` only reads and returns the record to log; `replay` is the only writer, at run time and at a restart. What may
be deleted follows from what the host has reported as durable, never from memory alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from pydanube.base.errors import (
    AcksScattered,
    StateInvalid,
    SubscriptionExists,
    SubscriptionInvalid,
    SubscriptionNotFound,
    TooManySubscriptions,
)
from pydanube.base.limits import SUBSCRIPTION_OPTIONS_BYTES_MAX, SUBSCRIPTIONS_MAX
from pydanube.topic.cursor import Cursor
from pydanube.topic.dedup import ProducerTable
from pydanube.topic.fills import Fills
from pydanube.topic.records import (
    CHUNKS_IN_RECORD_MAX,
    SNAPSHOT_VERSION,
    Acked,
    Cause,
    CursorChunks,
    Filled,
    Filling,
    FillsForgotten,
    FillState,
    Moved,
    ProducerAttached,
    ProducersForgotten,
    ProducersReleased,
    ProducerState,
    Record,
    SnapshotBegin,
    SnapshotEnd,
    SubscriptionChanged,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionKind,
    SubscriptionState,
    name_bytes,
)

_SnapshotPart = SubscriptionState | CursorChunks | ProducerState | FillState
IDS_SKIPPED = 1 << 16  # after damage: more ids than the records of one group can have assigned


@dataclass(slots=True)
class Subscription:
    id: int
    name: str
    kind: SubscriptionKind
    start: int  # its first offset
    options: bytes
    cursor: Cursor
    counts: list[int] = field(default_factory=lambda: [0] * len(Cause))  # messages done or skipped, by cause


class TopicState:
    """The state of one (partition of a) topic, owned by the topic's task."""

    def __init__(self) -> None:
        self._subscriptions: dict[int, Subscription] = {}
        self._names: dict[str, Subscription] = {}
        self._made = 0  # subscription ids assigned so far; none is used again
        self.producers = ProducerTable()
        self.fills = Fills()
        self._durable_floors: dict[int, int] = {}  # including subscriptions whose deletion is not durable yet
        self._snapshot_offset = 0  # data offset of the last durable snapshot
        self._loading: _Loading | None = None
        self.patched = False  # records are missing: those that depend on them are skipped

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._subscriptions.values())

    def __len__(self) -> int:
        return len(self._subscriptions)

    def find(self, name: str) -> Subscription | None:
        return self._names.get(name)

    def get(self, subscription: int) -> Subscription:
        found = self._subscriptions.get(subscription)
        if found is None:
            raise SubscriptionNotFound(f"subscription {subscription} does not exist")
        return found

    # -- deciding ------------------------------------------------------------------------------------------------------

    def decide_create(
        self, name: str, kind: SubscriptionKind, start: int, end: int, options: bytes = b""
    ) -> SubscriptionCreated:
        """The record that creates a subscription at `start`; the topic is confirmed below `end`, which is `latest`."""
        name_bytes(name)
        if name in self._names:
            raise SubscriptionExists(f"subscription {name!r}")
        if not 0 <= start <= end:
            raise SubscriptionInvalid(f"{name!r} cannot start at {start}, the topic is confirmed below {end}")
        _check_options(options)
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise TooManySubscriptions(f"the topic already has {SUBSCRIPTIONS_MAX} subscriptions")
        return SubscriptionCreated(self._made + 1, name, SubscriptionKind(kind), start, options)

    def decide_change(self, subscription: int, options: bytes) -> SubscriptionChanged | None:
        _check_options(options)
        return None if self.get(subscription).options == options else SubscriptionChanged(subscription, options)

    def decide_delete(self, subscription: int) -> SubscriptionDeleted:
        return SubscriptionDeleted(self.get(subscription).id)

    # -- replaying -----------------------------------------------------------------------------------------------------

    def replay(self, record: Record) -> None:
        """Applies a record. Snapshots are replayed only at a restart; one without an end changes nothing.

        Records between the parts of a snapshot were decided after it began: they are applied when the snapshot ends, or
        turns out to have no end.
        """
        if self.patched:
            self._replay_what_fits(record)
        else:
            self._replay(record)

    def _replay_what_fits(self, record: Record) -> None:
        """Replays after a gap. Ids that may have been assigned in the gap are never used again."""
        if isinstance(record, _SnapshotPart):
            self._loading = self._loading or _Loading(SnapshotBegin(SNAPSHOT_VERSION, 0, 0, 0, 0))
        elif isinstance(record, SnapshotEnd | SnapshotBegin):
            self._end_snapshot(whole=isinstance(record, SnapshotEnd))
        if not isinstance(record, SnapshotEnd):
            with suppress(StateInvalid, AcksScattered):  # it refers to something that was lost
                self._replay(record)
        known = getattr(record, "subscription", 0)
        self._made = max([self._made, known, *self._subscriptions])

    def _end_snapshot(self, *, whole: bool) -> None:
        """Uses the records of a snapshot, if it is complete or nothing else is known."""
        if self._loading is not None and (whole or not self._subscriptions):
            self._replay_snapshot(SnapshotEnd(self._loading.records))

    def _replay(self, record: Record) -> None:
        if isinstance(record, SnapshotBegin):
            self._give_up_loading()
            self._loading = _Loading(record)
        elif isinstance(record, _SnapshotPart | SnapshotEnd):
            self._replay_snapshot(record)
        elif self._loading is not None:
            self._loading.later.append(record)
        elif type(record) is Acked:
            known = self._known(record.subscription)
            known.counts[record.cause] += known.cursor.replay(record)
        else:
            self._replay_change(record)

    def _give_up_loading(self) -> None:
        loading, self._loading = self._loading, None
        for record in () if loading is None else loading.later:
            self.replay(record)

    def _replay_change(
        self,
        record: SubscriptionCreated
        | SubscriptionChanged
        | SubscriptionDeleted
        | Acked
        | Moved
        | ProducerAttached
        | ProducersForgotten
        | ProducersReleased
        | Filling
        | Filled
        | FillsForgotten,
    ) -> None:
        match record:
            case SubscriptionCreated(subscription, name, kind, start, options):
                if subscription <= self._made:
                    raise StateInvalid(f"subscription id {subscription} was given before")
                self._made = subscription
                self._insert(Subscription(subscription, name, kind, start, options, Cursor(subscription, start)))
            case SubscriptionChanged(subscription, options):
                self._known(subscription).options = options
            case SubscriptionDeleted(subscription):
                del self._names[self._known(subscription).name], self._subscriptions[subscription]
            case Moved():
                known = self._known(record.subscription)
                known.cursor.replay(record)
                known.counts[record.cause] += record.passed
                # After a seek back, the data is needed from now on, even before the seek is durable.
                self._durable_floors[known.id] = min(self._durable_floors[known.id], known.cursor.floor)
            case ProducerAttached() | ProducersForgotten() | ProducersReleased():
                self.producers.replay(record)
            case Filling() | Filled() | FillsForgotten():
                self.fills.replay(record)

    def _replay_snapshot(self, record: _SnapshotPart | SnapshotEnd) -> None:
        loading = self._loading
        if loading is None:
            raise StateInvalid("a part of a snapshot is separated from its beginning")
        if not isinstance(record, SnapshotEnd):
            loading.add(record)
            return
        if record.records != loading.records:
            raise StateInvalid(f"a snapshot of {record.records} records has {loading.records}")
        loaded = loading.state
        self._subscriptions, self._names, self._made = loaded._subscriptions, loaded._names, loaded._made
        self.producers, self.fills = loaded.producers, loaded.fills
        self._durable_floors, self._snapshot_offset = loaded._durable_floors, loaded._snapshot_offset
        self._give_up_loading()

    def _insert(self, subscription: Subscription) -> None:
        if subscription.name in self._names or subscription.id in self._subscriptions:
            raise StateInvalid(f"subscription {subscription.id}, {subscription.name!r}, already exists")
        self._subscriptions[subscription.id] = self._names[subscription.name] = subscription
        self._durable_floors[subscription.id] = subscription.cursor.floor

    def _known(self, subscription: int) -> Subscription:
        found = self._subscriptions.get(subscription)
        if found is None:
            raise StateInvalid(f"a record names subscription {subscription}, which does not exist")
        return found

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def snapshot(self, data_offset: int) -> Iterator[Record]:
        """The whole state as records to log in this order, as it is now, however late they are taken from the iterator.

        Producers are as they were after the batches below `data_offset`, the confirmed end; a restart passes the later
        ones to `producers.appended`. Check `producers.snapshot_ready` first.
        """
        begin = SnapshotBegin(SNAPSHOT_VERSION, data_offset, self._made, self.producers.made, self.producers.forgotten)
        cursors = [(_state_of(known), known.cursor.above.chunks()) for known in self._subscriptions.values()]
        return _records(begin, cursors, [*self.producers.snapshot(data_offset), *self.fills.snapshot()])

    # -- what is durable -----------------------------------------------------------------------------------------------

    def durable(self, subscription: int, generation: int, floor: int) -> None:
        """Notes that the records which brought the cursor to `floor` in `generation` are on disk."""
        known = self._subscriptions.get(subscription)
        if known is not None and known.cursor.generation == generation:  # else a later seek or deletion decides
            self._durable_floors[subscription] = max(self._durable_floors[subscription], floor)

    def durable_deletion(self, subscription: int) -> None:
        """Notes that the record of its deletion is on disk, so its data may be deleted."""
        if subscription not in self._subscriptions:
            self._durable_floors.pop(subscription, None)

    def deleted(self) -> list[int]:
        """Subscriptions whose deletion was not reported as durable yet; a snapshot without them makes it durable."""
        return [subscription for subscription in self._durable_floors if subscription not in self._subscriptions]

    def durable_snapshot(self, data_offset: int) -> None:
        """Notes that a complete snapshot is on disk."""
        self._snapshot_offset = max(self._snapshot_offset, data_offset)

    def recovered(self) -> None:
        """A restart has replayed everything, so all of it is durable."""
        if self.patched:
            self._end_snapshot(whole=False)
        self._give_up_loading()
        if self.patched:
            self._made += IDS_SKIPPED
            self.producers.made += IDS_SKIPPED
            self.producers.forgotten += 1  # some may be lost: producers must promise that they repeat nothing
        self._durable_floors = {known.id: known.cursor.floor for known in self}
        self.fills.durable(self.fills.ended)

    def deletable_before(self) -> int | None:
        """The durable floor of the slowest subscription, which needs nothing below it. None without subscriptions."""
        return min(self._durable_floors.values(), default=None)

    def producers_from(self) -> int | None:
        """The first offset whose batch header a restart reads again to know its producers; None without any."""
        return self._snapshot_offset if len(self.producers) else None

    def needed_from(self) -> int | None:
        """The first offset that a restart reads again to know the state; None if it needs no message."""
        needed = (self.producers_from(), self.fills.needed_from)
        return min((each for each in needed if each is not None), default=None)


def _state_of(known: Subscription) -> SubscriptionState:
    cursor, counts = known.cursor, tuple(known.counts)
    return SubscriptionState(
        known.id, known.name, known.kind, known.start, cursor.floor, cursor.generation, counts, known.options
    )


def _records(
    begin: SnapshotBegin,
    cursors: list[tuple[SubscriptionState, dict[int, int]]],
    others: list[ProducerState | FillState],
) -> Iterator[Record]:
    count = len(others)
    yield begin
    for state, bitmaps in cursors:
        yield state
        chunks = sorted(bitmaps.items())
        for at in range(0, len(chunks), CHUNKS_IN_RECORD_MAX):
            yield CursorChunks(state.subscription, tuple(chunks[at : at + CHUNKS_IN_RECORD_MAX]))
        count += 1 - (-len(chunks) // CHUNKS_IN_RECORD_MAX)
    yield from others
    yield SnapshotEnd(count)


class _Loading:
    """A snapshot that is being read; it takes effect at its end."""

    def __init__(self, begin: SnapshotBegin) -> None:
        self.records = 0
        self.later: list[Record] = []  # records between its parts
        self.state = TopicState()
        self.state._made = begin.subscriptions_made
        self.state._snapshot_offset = begin.data_offset
        self.state.producers.made = begin.producers_made
        self.state.producers.forgotten = begin.producers_forgotten

    def add(self, record: _SnapshotPart) -> None:
        self.records += 1
        if isinstance(record, SubscriptionState):
            cursor = Cursor(record.subscription, record.floor, record.generation)
            self.state._insert(
                Subscription(
                    record.subscription,
                    record.name,
                    record.kind,
                    record.start,
                    record.options,
                    cursor,
                    list(record.counts),
                )
            )
        elif isinstance(record, CursorChunks):
            cursor = self.state._known(record.subscription).cursor
            for number, bits in record.chunks:
                cursor.above.load_chunk(number, bits)
            if cursor.above.count_below(cursor.floor + 1):
                raise StateInvalid(f"a bitmap of subscription {record.subscription} reaches down to its floor")
        elif isinstance(record, FillState):
            self.state.fills.replay(record)
        else:
            self.state.producers.replay(record)


def _check_options(options: bytes) -> None:
    if len(options) > SUBSCRIPTION_OPTIONS_BYTES_MAX:
        raise SubscriptionInvalid(
            f"the options have {len(options)} bytes; the maximum is {SUBSCRIPTION_OPTIONS_BYTES_MAX}"
        )
