"""The state of one key of a Key-Shared subscription: what of it is queued, what is in flight and with whom."""

from __future__ import annotations

from collections import OrderedDict, deque

from pydanube.base.ids import ConsumerId
from pydanube.dispatch.redelivery import Failure, Lease
from pydanube.dispatch.roster import Member

NOTHING_OWED = -1


class KeyMember(Member):
    """A consumer and the keys that have something for it, by their numbers and in the order they came."""

    __slots__ = ("crashed", "gone", "line")

    def __init__(self, consumer: ConsumerId) -> None:
        super().__init__(consumer)
        self.line: OrderedDict[int, KeyState] = OrderedDict()  # any may go in constant time
        self.gone = False  # it has left; the keys that it held go to others one after the other
        self.crashed = False


class KeyState:
    """A key with messages that are not done. Everything in flight is with `holder`, below everything in the queue."""

    __slots__ = ("failures", "flight", "holder", "key", "lined", "number", "overdue", "owed", "queue")

    def __init__(self, key: bytes, number: int) -> None:
        self.key = key
        self.number = number
        self.holder: KeyMember | None = None
        self.queue: deque[int] = deque()
        self.flight: dict[int, Lease] = {}  # ascending
        self.failures: dict[int, Failure] = {}  # of those that failed
        self.owed = NOTHING_OWED  # queued offsets up to this one go to the holder again, whoever owns the key
        self.lined = False  # stands in its holder's line
        self.overdue: set[int] = set()  # in flight, and not acknowledged in time

    def let_go(self) -> None:
        """The next message goes to whoever owns the key then."""
        self.holder = None
        self.owed = NOTHING_OWED

    def rewind(self, first: int) -> dict[int, Lease]:
        """Everything in flight from `first` on is queued again, before the rest."""
        rewound = {offset: lease for offset, lease in self.flight.items() if offset >= first}
        for offset in rewound:
            del self.flight[offset]
            self.overdue.discard(offset)
        self.queue.extendleft(reversed(rewound))
        self.owed = max(self.owed, *rewound)
        return rewound
