"""Bounds of the cold tier. Unit last in the name; the reason beside it."""

from __future__ import annotations

from pydanube.base.limits import KIB, MIB
from pydanube.base.retry import Backoff

# -- the object ------------------------------------------------------------------------------------------------------
GROUP_ROWS = 100_000  # of a row group: what a reader takes at once, and what one offset in the catalogue stands for
GROUP_BYTES = 32 * MIB  # of keys, payloads and attributes in a row group; one row may be more
TAIL_BYTES = 64 * KIB  # read first: holds the footer of a segment of the usual size
FOOTER_BYTES_MAX = 16 * MIB  # 4,000 row groups
OBJECT_BYTES_MAX = 500 * MIB  # of a segment; object storage is read in one call of so much at most

# -- the work --------------------------------------------------------------------------------------------------------
GATHERED_ROWS = GROUP_ROWS  # of batches that become rows in one go
GATHERED_BYTES = 16 * MIB  # the same, of what they unpack to; one batch may go beyond
BATCH_BYTES_TARGET = 1 * MIB  # of a batch made of rows
FOOTERS_KEPT_BYTES = 16 * MIB  # of segments read lately; a footer is a few KiB
GROUPS_KEPT_BYTES = 128 * MIB  # of rows read lately or ahead; four readers, each with the group it reads and the next
READ_BYTES_MAX = 32 * MIB  # of one answer; one batch may go beyond

# -- between processes -----------------------------------------------------------------------------------------------
CHUNK_BYTES = 1 * MIB  # handed over in one turn of the loop, about half a millisecond
FRAME_BYTES_MAX = 4 * MIB  # a piece, or a call with the facts of thousands of segments
WINDOW_BYTES = 8 * MIB  # of batches on their way to a process, for each that writes
WRITES_AT_ONCE = 2
READS_AT_ONCE = 4
OTHERS_AT_ONCE = 4
TABLES_AT_ONCE = 1  # more would only be in each other's way
TABLE_FILES_A_PIECE = 500  # of a listing, on their way to a process
CALLS_WAITING_MAX = 256  # of one process; beyond it TierBusy
START_SECONDS = 20.0  # for a process to say hello: it imports Arrow
RESTART = Backoff(0.1, 10.0)  # before a process that died is started again
STEADY_SECONDS = 30.0  # a process that lived so long starts again at once
CLOSE_SECONDS = 0.5  # for a process to leave by itself
REST_BYTES_MAX = 384 * MIB  # of memory of a process with nothing to do, caches and Arrow are 250; else it is replaced
BUSY_BYTES_MAX = 768 * MIB  # of one that is never at rest: two large segments take 650; beyond it, it ends what it has
NICENESS = 10  # of the processes: live traffic goes first
