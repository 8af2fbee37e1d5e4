"""The state of one key of a Key-Shared subscription: what of it is queued, what is in flight and with whom."""

from __future__ import annotations

from collections import deque

from pydanube.base.ids import ConsumerId
from pydanube.dispatch.redelivery import Lease
from pydanube.dispatch.roster import Member

NOTHING_OWED = -1


class KeyMember(Member):
    """A consumer and the keys that have something for it, in the order they came."""

    __slots__ = ("line",)

    def __init__(self, consumer: ConsumerId) -> None:
        super().__init__(consumer)
        self.line: deque[KeyState] = deque()


class KeyState:
    """A key with messages that are not done. Everything in flight is with `holder`, below everything in the queue."""

    __slots__ = ("failures", "flight", "gate", "gated", "holder", "key", "lined", "number", "owed", "queue")

    def __init__(self, key: bytes, number: int) -> None:
        self.key = key
        self.number = number
        self.holder: KeyMember | None = None
        self.queue: deque[int] = deque()
        self.flight: dict[int, Lease] = {}  # ascending
        self.failures: dict[int, int] = {}  # of those that failed
        self.owed = NOTHING_OWED  # queued offsets up to this one go to the holder again, whoever owns the key
        self.gate = 0  # until then nothing from the first gated offset on is delivered; 0 if nothing waits
        self.gated = (0, 0)  # the lowest and the highest offset whose failure has to be waited out
        self.lined = False  # stands in its holder's line

    def let_go(self) -> None:
        """The next message goes to whoever owns the key then."""
        self.holder = None
        self.owed = NOTHING_OWED

    def rewind(self, first: int) -> dict[int, Lease]:
        """Everything in flight from `first` on is queued again, before the rest."""
        rewound = {offset: lease for offset, lease in self.flight.items() if offset >= first}
        for offset in rewound:
            del self.flight[offset]
        self.queue.extendleft(reversed(rewound))
        self.owed = max(self.owed, *rewound)
        self.lined = False
        return rewound

    def shut(self, failed: list[int], time: int) -> None:
        """Waits out these failures. What waits already lies above the first of them: it was rewound."""
        highest = max(failed[-1], self.gated[1]) if self.gate else failed[-1]
        self.gate = max(self.gate, time)
        self.gated = (failed[0], highest)

    @property
    def shut_out(self) -> bool:
        """Whether the next message has to wait; one below those that failed need not."""
        return self.gate > 0 and self.queue[0] >= self.gated[0]
