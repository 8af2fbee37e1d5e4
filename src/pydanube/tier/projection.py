"""Reads some columns of a row group, and only their bytes, for readers that need rows and not batches.

The footer, which has its own checksum, says where each column is. Pages have checksums that are verified as they are
decoded. A row group that is read as a whole is also verified by its own checksum, because page headers have none.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pydanube.base.checksum import crc32c
from pydanube.base.limits import KIB, MIB
from pydanube.tier.segment_file import Footer, InvalidSegment, Pieces

GAP_BYTES = 256 * KIB  # columns closer than this are read in one request, because a request costs as much
DECODED_BYTES_MAX = 512 * MIB  # of a row group; they are written with 32 MiB, or a single row
WHOLE_PART = 2  # if more than half of a row group is needed, all of it is read, so that every byte can be checked
Stretch = tuple[int, int]  # start and length


def stretches(footer: Footer, index: int, names: Sequence[str]) -> list[Stretch]:
    """The parts of the object that must be read for these columns of a row group, in order."""
    group, found = footer.groups[index], footer.parquet.row_group(index)
    if found.total_byte_size > DECODED_BYTES_MAX:
        raise InvalidSegment(f"row group {index} claims to have {found.total_byte_size} bytes")
    columns: list[Stretch] = []
    for number in range(found.num_columns):
        chunk = found.column(number)
        if chunk.path_in_schema.partition(".")[0] not in names:
            continue
        start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
        length = chunk.total_compressed_size
        if length < 1 or start < group.start or start + length > group.start + group.length:
            raise InvalidSegment(f"a column of row group {index} is outside of it")
        columns.append((start, length))
    joined: list[Stretch] = []
    for start, length in sorted(columns):
        if joined and start <= sum(joined[-1]) + GAP_BYTES:
            before = joined.pop()
            start, length = before[0], max(sum(before), start + length) - before[0]
        joined.append((start, length))
    if sum(length for _, length in joined) * WHOLE_PART > group.length:
        return [(group.start, group.length)]
    return joined


def read_columns(
    footer: Footer, index: int, names: Sequence[str], pieces: Sequence[tuple[int, bytes]]
) -> pa.RecordBatch:
    """The columns, from the pieces that `stretches` named, each with its start. `offset` must be among them."""
    group = footer.groups[index]
    start, data = pieces[0]
    if (start, len(data)) == (group.start, group.length) and crc32c(data) != group.crc:
        raise InvalidSegment(f"row group {index} does not match its checksum")
    try:
        source = pa.PythonFile(Pieces(pieces), mode="r")
        checked = {"page_checksum_verification": True, "pre_buffer": False}
        with pq.ParquetFile(source, metadata=footer.parquet, **checked) as file:
            table = file.read_row_group(index, columns=list(names), use_threads=False)
        [rows] = table.replace_schema_metadata(None).combine_chunks().to_batches() or [None]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidSegment(f"row group {index} cannot be read: {error}") from None
    if rows is None or len(rows) != group.rows or rows.column("offset")[0].as_py() != group.first:
        raise InvalidSegment(f"row group {index} does not have the rows that it claims")
    return rows
