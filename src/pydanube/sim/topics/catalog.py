"""The product's catalogue, with an observer that is told of every record in the order in which they were stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pydanube.base.ids import LedgerId
from pydanube.ports.catalog import RecordChange
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.stream.catalog import MetadataCatalog
from pydanube.stream.assignment import Held
from pydanube.stream.record import StreamRecord

Stored = Callable[[str, StreamRecord, int], None]  # stream, record, version


class ObservedCatalog(MetadataCatalog):
    """A change is seen when its answer arrives. If that is lost, it is seen when its record is next loaded or changed:
    nothing can follow from it before."""

    def __init__(self, store: MetadataStore, observe: Stored, ledgers: Iterator[int] | None = None) -> None:
        """With several catalogues, `ledgers` numbers the ledgers of all of them."""
        super().__init__(store)
        self._observe = observe
        self._ledgers = ledgers

    async def load(self, stream: str) -> tuple[StreamRecord, int]:
        record, version = await super().load(stream)
        self._observe(stream, record, version)
        return record, version

    async def store(self, changes: Sequence[RecordChange], held: Held | None) -> int:
        stored = await super().store(changes, held)
        for stream, record, version, before in changes:
            self._observe(stream, before, version)
            self._observe(stream, record, stored)
        return stored

    async def next_ledger_id(self) -> LedgerId:
        return await super().next_ledger_id() if self._ledgers is None else LedgerId(next(self._ledgers))
