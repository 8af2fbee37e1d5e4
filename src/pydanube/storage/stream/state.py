"""The states of a stream that has an owner. It is in exactly one of them, and `NEXT` says what may follow.

```
                recovered                first append
  Opening ──────────────────► Idle ──────────────────► Beginning
     │ ▲                                                 │   ▲
     │ └── a ledger failed (Open, Beginning)       begun ▼   │ rolled
     └──────────────────────────────────────────────────► Open
```

Any of them can become `TakenOver` or `Closed`, and nothing leads back from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydanube.base.errors import DanubeError
from pydanube.storage.stream.writer import LedgerWriter


@dataclass(frozen=True, slots=True)
class WithoutWriter:
    """A state in which no ledger takes appends."""

    writer: ClassVar[None] = None
    why: DanubeError
    ending: LedgerWriter | None = None  # the last ledger, while closing waits for its appends


class Opening(WithoutWriter):
    """The owner recovers the ledger that was left open and makes a new one, repeatedly until that works."""


class Idle(WithoutWriter):
    """Recovered, and without an open ledger: the stream is lazy, or its nodes have too many ledgers."""


class TakenOver(WithoutWriter):
    """Another broker owns the stream."""


class Closed(WithoutWriter):
    """The owner has closed the stream."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The next ledger is being created. Its writer takes batches, and holds them back until the ledger exists."""

    writer: LedgerWriter
    ending: LedgerWriter | None = None  # the previous ledger; None if the stream was idle
    correction: int | None = None  # the right time, if append times were ahead of it


@dataclass(frozen=True, slots=True)
class Open:
    """A ledger takes appends."""

    ending: ClassVar[None] = None
    writer: LedgerWriter
    since: float  # when the ledger was created, on the monotonic clock


State = WithoutWriter | Beginning | Open

NEXT: dict[type[State], tuple[type[State], ...]] = {
    Opening: (Opening, Idle, Open, TakenOver, Closed),
    Idle: (Beginning, TakenOver, Closed),
    Beginning: (Open, Opening, TakenOver, Closed),
    Open: (Beginning, Opening, TakenOver, Closed),
    TakenOver: (TakenOver, Closed),
    Closed: (Closed,),
}
