"""A task's rows, collected by partition and written to one growing file for each: what table formats share.

Memory is bounded by `HELD_BYTES` and the buffers of `OPEN_MAX` files. A task with more partitions spills its rows to
the local disk, and writes them at the end, some partitions at a time, so that each still has one file.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import IO, Any, Generic, TypeVar
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pydanube.base.limits import MIB

HELD_BYTES = 32 * MIB  # of rows that are held back, so that row groups are not tiny
OPEN_MAX = 256  # partitions of a task at a time, each with an open file
BUCKETS = 64  # of spilled rows: a task with 16,000 partitions still writes each of them once
GROUP_ROWS_MAX = 1_000_000

Values = tuple[Any, ...]  # of the partition columns
File = TypeVar("File")


@dataclass(slots=True)
class Part:
    """The rows of one partition: those held back, and the open file."""

    values: Values
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_bytes: int = 0
    path: str = ""
    output: Any = None
    writer: pq.ParquetWriter | None = None
    nan: set[str] = field(default_factory=set)


class PartitionedFiles(ABC, Generic[File]):
    """A `Stager` that writes files, and deletes them if it is dropped."""

    def __init__(self, schema: pa.Schema, partition_by: Sequence[str], file_bytes: int, held_bytes: int) -> None:
        self._schema = schema  # of the files
        self._partition_by = tuple(partition_by)
        self._file_bytes = file_bytes
        self._held_bytes_max = held_bytes
        self._held_bytes = 0
        self._parts: dict[Values, Part] = {}  # in the order in which they last got rows
        self._spill: Spill | None = None
        self._begun: list[str] = []
        self._done: list[File] = []

    @abstractmethod
    def _divided(self, rows: pa.RecordBatch) -> Iterable[tuple[Values, pa.RecordBatch]]:
        """The rows of each partition, as the files have them."""

    @abstractmethod
    def _open(self, part: Part) -> None:
        """Sets its path, output and writer."""

    @abstractmethod
    def _described(self, part: Part, metadata: Any, size: int) -> File:
        """Describes a file that was closed."""

    @abstractmethod
    def _delete(self, paths: Sequence[str]) -> None:
        """Deletes files; ignores failures."""

    def add(self, rows: pa.RecordBatch) -> None:
        if not len(rows):
            return
        if self._spill is None:
            pieces = list(self._divided(rows))
            if len(self._parts.keys() | {values for values, _ in pieces}) <= OPEN_MAX:
                self._hold(pieces)
                return
            self._spill = Spill(self._partition_by)
        self._spill.add(rows)

    def finish(self) -> list[File] | None:
        self._end_all()
        if self._spill is not None:
            for bucket in self._spill.buckets():
                for rows in bucket:
                    self._hold(self._divided(rows))
                self._end_all()
            self._spill.close()
        return self._done or None

    def drop(self) -> None:
        for part in self._parts.values():
            with suppress(Exception):
                if part.writer is not None:
                    part.writer.close()
            with suppress(Exception):
                if part.output is not None:
                    part.output.close()
        if self._spill is not None:
            self._spill.close()
        self._delete(self._begun)

    def _hold(self, pieces: Iterable[tuple[Values, pa.RecordBatch]]) -> None:
        for values, some in pieces:
            part = self._parts.pop(values, None)
            if part is None and len(self._parts) >= OPEN_MAX:
                self._end(self._parts.pop(next(iter(self._parts))))
            part = self._parts[values] = part or Part(values)
            part.held.append(some)
            part.held_bytes += some.nbytes
            self._held_bytes += some.nbytes
        while self._held_bytes >= self._held_bytes_max:
            self._flush(max(self._parts.values(), key=lambda each: each.held_bytes))

    def _end_all(self) -> None:
        while self._parts:
            self._end(self._parts.pop(next(iter(self._parts))))

    def _end(self, part: Part) -> None:
        self._flush(part)
        self._close(part)

    def _flush(self, part: Part) -> None:
        if not part.held:
            return
        rows = pa.Table.from_batches(part.held, self._schema)
        self._held_bytes -= part.held_bytes
        part.held, part.held_bytes = [], 0
        if part.writer is None:
            self._open(part)
        assert part.writer is not None
        self._written(part, rows)
        part.writer.write_table(rows, row_group_size=GROUP_ROWS_MAX)
        if part.output.tell() >= self._file_bytes:
            self._close(part)

    def _written(self, part: Part, rows: pa.Table) -> None:
        """Called with rows that are about to be written."""

    def _close(self, part: Part) -> None:
        if part.writer is None:
            return
        part.writer.close()
        size = part.output.tell()
        part.output.close()
        self._done.append(self._described(part, part.writer.writer.metadata, size))
        part.writer = part.output = None
        part.nan = set()


def divided(
    rows: pa.RecordBatch, partition_by: Sequence[str], value_of: Callable[[pa.Scalar], Any]
) -> list[tuple[Values, pa.RecordBatch]]:
    """The rows for each combination of values, in their order. A column that they do not have is null."""
    names = rows.schema.names
    codes = np.zeros(len(rows), np.int64)
    for name in partition_by:
        if name in names:
            encoded = rows.column(name).dictionary_encode()
            known = len(encoded.dictionary)
            numbers = pc.fill_null(encoded.indices, known).to_numpy(zero_copy_only=False).astype(np.int64)
            # Renumbered at once, so that many columns do not overflow.
            _, codes = np.unique(codes * (known + 1) + numbers, return_inverse=True)
    firsts = np.unique(codes, return_index=True)[1].tolist()
    values = [
        tuple(value_of(rows.column(name)[first]) if name in names else None for name in partition_by)
        for first in firsts
    ]
    if len(firsts) == 1:
        return [(values[0], rows)]
    order = np.argsort(codes, kind="stable")
    rows = pc.take(rows, pa.array(order))
    borders = [*np.searchsorted(codes[order], np.arange(len(firsts))).tolist(), len(rows)]
    return [
        (value, rows.slice(start, end - start)) for value, (start, end) in zip(values, pairwise(borders), strict=True)
    ]


class Spill:
    """Rows in temporary files. All rows of a partition are in the same file."""

    def __init__(self, partition_by: Sequence[str]) -> None:
        self._partition_by = tuple(partition_by)
        self._files: dict[int, tuple[IO[bytes], pa.ipc.RecordBatchStreamWriter]] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        numbers = self._numbers(rows)
        order = np.argsort(numbers, kind="stable")
        sorted_rows = rows.take(pa.array(order))
        present, starts = np.unique(numbers[order], return_index=True)
        ends = [*starts.tolist()[1:], len(rows)]
        for number, start, end in zip(present.tolist(), starts.tolist(), ends, strict=True):
            if number not in self._files:
                file = tempfile.TemporaryFile(prefix="danube-spill-")  # noqa: SIM115  # closed by `close`
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                self._files[number] = file, pa.ipc.new_stream(file, rows.schema, options=options)
            self._files[number][1].write_batch(sorted_rows.slice(start, end - start))

    def _numbers(self, rows: pa.RecordBatch) -> Any:
        """The bucket of each row, by its values, so that it is the same in every batch."""
        found = np.zeros(len(rows), np.uint64)
        for name in self._partition_by:
            if name not in rows.schema.names:
                continue
            encoded = rows.column(name).dictionary_encode()
            hashes = [crc32(str(value).encode("utf-8", "surrogatepass")) for value in encoded.dictionary.to_pylist()]
            indices = pc.fill_null(encoded.indices, len(hashes)).to_numpy(zero_copy_only=False)
            found = found * np.uint64(31) + np.array([*hashes, 0], np.uint64)[indices]
        return (found % np.uint64(BUCKETS)).astype(np.int64)

    def buckets(self) -> Iterator[Iterator[pa.RecordBatch]]:
        for file, writer in self._files.values():
            writer.close()
            file.seek(0)
            yield iter(pa.ipc.open_stream(file))

    def close(self) -> None:
        for file, _ in self._files.values():
            with suppress(Exception):
                file.close()
        self._files.clear()
