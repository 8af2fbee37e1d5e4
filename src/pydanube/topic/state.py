"""All a topic remembers besides its messages: subscriptions with their cursors, and its producers. Decide, log, replay.

`decide_*` only reads and returns the record to log; `replay` is the only writer, live and at a restart. What may be
deleted follows from what the host reported as durable, never from memory alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pydanube.base.errors import (
    AckInvalid,
    AcksScattered,
    StateInvalid,
    SubscriptionExists,
    SubscriptionInvalid,
    SubscriptionNotFound,
    TooManySubscriptions,
)
from pydanube.base.limits import SUBSCRIPTION_OPTIONS_BYTES_MAX, SUBSCRIPTIONS_MAX
from pydanube.topic.cursor import Cursor, Range
from pydanube.topic.dedup import ProducerTable
from pydanube.topic.records import (
    CHUNKS_IN_RECORD_MAX,
    SNAPSHOT_VERSION,
    Acked,
    Cause,
    CursorChunks,
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

IDS_SKIPPED = 1 << 16  # behind damage: more than the records of one group can have given out


@dataclass(slots=True)
class Subscription:
    id: int
    name: str
    kind: SubscriptionKind
    start: int  # its first offset
    options: bytes
    cursor: Cursor
    counts: list[int] = field(default_factory=lambda: [0] * len(Cause))  # messages done or passed over, by cause


class TopicState:
    """The state of one (partition of a) topic, owned by the topic's task."""

    def __init__(self) -> None:
        self._subscriptions: dict[int, Subscription] = {}
        self._names: dict[str, Subscription] = {}
        self._made = 0  # subscription ids given so far; none is used again
        self.producers = ProducerTable()
        self._durable_floors: dict[int, int] = {}  # also of subscriptions whose deletion is not durable yet
        self._snapshot_offset = 0  # data offset of the last durable snapshot
        self._loading: _Loading | None = None
        self.patched = False  # records are missing: those that rest on them are passed over

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
        """A subscription from `start` on; the topic is confirmed below `end`, where `latest` is."""
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

    def decide_ack(
        self, subscription: int, generation: int, ranges: Sequence[Range], end: int, cause: Cause = Cause.ACKED
    ) -> Acked | None:
        """See `Cursor.decide_ack`. What was delivered before the last seek is answered with None: fine, and ignored."""
        cursor = self.get(subscription).cursor
        if generation != cursor.generation:
            if generation > cursor.generation:
                raise AckInvalid(f"subscription {subscription} is at generation {cursor.generation}, not {generation}")
            return None
        return cursor.decide_ack(ranges, end, cause)

    def decide_move(self, subscription: int, floor: int, end: int, cause: Cause) -> Moved | None:
        """See `Cursor.decide_move`."""
        return self.get(subscription).cursor.decide_move(floor, end, cause)

    # -- replaying -----------------------------------------------------------------------------------------------------

    def replay(self, record: Record) -> None:
        """Applies a record. Snapshots are replayed at a restart only; one without its end changes nothing.

        What stands between the parts of a snapshot was decided after it was begun: it is applied when the snapshot has
        come to its end, or turns out to have none.
        """
        if self.patched:
            self._replay_what_fits(record)
        else:
            self._replay(record)

    def _replay_what_fits(self, record: Record) -> None:
        """Behind a gap. Ids of what the gap may have held are never given again."""
        if isinstance(record, SubscriptionState | CursorChunks | ProducerState):
            self._loading = self._loading or _Loading(SnapshotBegin(SNAPSHOT_VERSION, 0, 0, 0, 0))
        elif isinstance(record, SnapshotEnd | SnapshotBegin):
            self._end_snapshot(whole=isinstance(record, SnapshotEnd))
        if not isinstance(record, SnapshotEnd):
            with suppress(StateInvalid, AcksScattered):  # it speaks of what is not there
                self._replay(record)
        known = getattr(record, "subscription", 0)
        self._made = max([self._made, known, *self._subscriptions])

    def _end_snapshot(self, *, whole: bool) -> None:
        """Takes what there is of a snapshot, if it has its end or nothing else is known."""
        if self._loading is not None and (whole or not self._subscriptions):
            self._replay_snapshot(SnapshotEnd(self._loading.records))

    def _replay(self, record: Record) -> None:
        if isinstance(record, SnapshotBegin):
            self._give_up_loading()
            self._loading = _Loading(record)
        elif isinstance(record, SubscriptionState | CursorChunks | ProducerState | SnapshotEnd):
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
        | ProducersReleased,
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
                # A seek back needs its data from now on, whenever it becomes durable.
                self._durable_floors[known.id] = min(self._durable_floors[known.id], known.cursor.floor)
            case ProducerAttached() | ProducersForgotten() | ProducersReleased():
                self.producers.replay(record)

    def _replay_snapshot(self, record: SubscriptionState | CursorChunks | ProducerState | SnapshotEnd) -> None:
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
        self.producers = loaded.producers
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
        """All of it as records, as it is now, however late they are asked for; to be logged in this order.

        Producers are as of the batches below `data_offset`, the confirmed end; a restart feeds the later ones to
        `producers.appended`. Ask `producers.snapshot_ready` before.
        """
        begin = SnapshotBegin(SNAPSHOT_VERSION, data_offset, self._made, self.producers.made, self.producers.forgotten)
        cursors = [(_state_of(known), known.cursor.above.chunks()) for known in self._subscriptions.values()]
        return _records(begin, cursors, self.producers.snapshot(data_offset))

    # -- what is durable -----------------------------------------------------------------------------------------------

    def durable(self, subscription: int, generation: int, floor: int) -> None:
        """Records that brought the cursor to `floor` in `generation` are on disk."""
        known = self._subscriptions.get(subscription)
        if known is not None and known.cursor.generation == generation:  # else a later seek or deletion decides
            self._durable_floors[subscription] = max(self._durable_floors[subscription], floor)

    def durable_deletion(self, subscription: int) -> None:
        """The record of its deletion is on disk, so its data may go."""
        if subscription not in self._subscriptions:
            self._durable_floors.pop(subscription, None)

    def deleted(self) -> list[int]:
        """Subscriptions whose deletion was not reported as durable; a snapshot without them makes it so."""
        return [subscription for subscription in self._durable_floors if subscription not in self._subscriptions]

    def durable_snapshot(self, data_offset: int) -> None:
        """A snapshot is on disk up to its end."""
        self._snapshot_offset = max(self._snapshot_offset, data_offset)

    def recovered(self) -> None:
        """A restart has replayed everything: all of it was read from disk."""
        if self.patched:
            self._end_snapshot(whole=False)
        self._give_up_loading()
        if self.patched:
            self._made += IDS_SKIPPED
            self.producers.made += IDS_SKIPPED
            self.producers.forgotten += 1  # some may be: they have to say that they repeat nothing
        self._durable_floors = {known.id: known.cursor.floor for known in self}

    def deletable_before(self) -> int | None:
        """Where the slowest subscription durably stands: it needs nothing below. None without subscriptions."""
        return min(self._durable_floors.values(), default=None)

    def needed_from(self) -> int | None:
        """The first offset whose batch header a restart reads again to know its producers; None without any."""
        return self._snapshot_offset if len(self.producers) else None


def _state_of(known: Subscription) -> SubscriptionState:
    cursor, counts = known.cursor, tuple(known.counts)
    return SubscriptionState(
        known.id, known.name, known.kind, known.start, cursor.floor, cursor.generation, counts, known.options
    )


def _records(
    begin: SnapshotBegin, cursors: list[tuple[SubscriptionState, dict[int, int]]], producers: list[ProducerState]
) -> Iterator[Record]:
    count = len(producers)
    yield begin
    for state, bitmaps in cursors:
        yield state
        chunks = sorted(bitmaps.items())
        for at in range(0, len(chunks), CHUNKS_IN_RECORD_MAX):
            yield CursorChunks(state.subscription, tuple(chunks[at : at + CHUNKS_IN_RECORD_MAX]))
        count += 1 - (-len(chunks) // CHUNKS_IN_RECORD_MAX)
    yield from producers
    yield SnapshotEnd(count)


class _Loading:
    """A snapshot that is being read; it counts from its end on."""

    def __init__(self, begin: SnapshotBegin) -> None:
        self.records = 0
        self.later: list[Record] = []  # that stand between its parts
        self.state = TopicState()
        self.state._made = begin.subscriptions_made
        self.state._snapshot_offset = begin.data_offset
        self.state.producers.made = begin.producers_made
        self.state.producers.forgotten = begin.producers_forgotten

    def add(self, record: SubscriptionState | CursorChunks | ProducerState) -> None:
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
        else:
            self.state.producers.replay(record)


def _check_options(options: bytes) -> None:
    if len(options) > SUBSCRIPTION_OPTIONS_BYTES_MAX:
        raise SubscriptionInvalid(
            f"the options have {len(options)} bytes; the maximum is {SUBSCRIPTION_OPTIONS_BYTES_MAX}"
        )
