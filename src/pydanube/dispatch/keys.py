"""The state of one key of a Key-Shared subscription: which messages are queued, which are in flight, and with whom."""

from __future__ import annotations

from collections import OrderedDict, deque

from pydanube.base.ids import ConsumerId
from pydanube.dispatch.redelivery import Failure, Lease
from pydanube.dispatch.roster import Member

NOTHING_OWED = -1


class KeyMember(Member):
    """A consumer and the line of keys that have messages for it, by number, in the order they lined up."""

    __slots__ = ("crashed", "gone", "line")

    def __init__(self, consumer: ConsumerId) -> None:
        super().__init__(consumer)
        self.line: OrderedDict[int, KeyState] = OrderedDict()  # an OrderedDict removes any key in constant time
        self.gone = False  # it has left; its keys are reassigned, a few per poll
        self.crashed = False


class KeyState:
    """A key with unacknowledged messages. All in flight are with `holder`, and have lower offsets than those queued."""

    __slots__ = ("failures", "flight", "holder", "in_line", "key", "number", "overdue", "owed", "queue")

    def __init__(self, key: bytes, number: int) -> None:
        self.key = key
        self.number = number
        self.holder: KeyMember | None = None
        self.queue: deque[int] = deque()
        self.flight: dict[int, Lease] = {}  # by offset, ascending
        self.failures: dict[int, Failure] = {}  # by offset
        self.owed = NOTHING_OWED  # queued offsets up to here go to the holder again, even if another owns the key
        self.in_line = False  # in the line of its holder
        self.overdue: set[int] = set()  # offsets in flight that were not acknowledged in time

    def release(self) -> None:
        """From now on, the next message goes to the key's owner."""
        self.holder = None
        self.owed = NOTHING_OWED

    def rewind(self, first: int) -> dict[int, Lease]:
        """Puts everything in flight from `first` on back at the front of the queue."""
        rewound = {offset: lease for offset, lease in self.flight.items() if offset >= first}
        for offset in rewound:
            del self.flight[offset]
            self.overdue.discard(offset)
        self.queue.extendleft(reversed(rewound))
        self.owed = max(self.owed, *rewound)
        return rewound
