"""Bounds of the cold tier. The unit is last in the name, the reason beside it."""

from __future__ import annotations

from pydanube.base.limits import KIB, MIB
from pydanube.base.retry import Backoff

# -- the object ------------------------------------------------------------------------------------------------------
GROUP_ROWS = 100_000  # of a row group, which a reader reads at once, and for which the catalogue has one offset
GROUP_BYTES = 32 * MIB  # of keys, payloads and attributes in a row group; a single row may exceed it
TAIL_BYTES = 64 * KIB  # read first: contains the footer of a segment of the usual size
FOOTER_BYTES_MAX = 16 * MIB  # 4,000 row groups
OBJECT_BYTES_MAX = 500 * MIB  # of a segment, so that one call of object storage can read it

# -- the work --------------------------------------------------------------------------------------------------------
GATHERED_ROWS = GROUP_ROWS  # of batches that become rows in one step
GATHERED_BYTES = 16 * MIB  # the same, unpacked; a single batch may exceed it
BATCH_BYTES_TARGET = 1 * MIB  # of a batch built from rows
FOOTER_CACHE_BYTES = 16 * MIB  # of recently read segments; a footer is a few KiB
GROUP_CACHE_BYTES = 128 * MIB  # of rows read recently or ahead: four readers, each with its row group and the next
READ_BYTES_MAX = 32 * MIB  # of one answer; a single batch may exceed it

# -- between processes -----------------------------------------------------------------------------------------------
CHUNK_BYTES = 1 * MIB  # sent in one turn of the loop, about half a millisecond
ALONE_BYTES = 64 * KIB  # of a content, from which on a frame of its own is cheaper than a copy
FRAME_BYTES_MAX = 4 * MIB  # a piece, or a call that describes thousands of segments
FRAMES_WAITING_BYTES = 2 * MIB  # received but not taken: beyond it, nothing more is read from the other process
WINDOW_BYTES = 8 * MIB  # of batches in transit to a process, for each write
WRITES_AT_ONCE = 2
READS_AT_ONCE = 4
OTHERS_AT_ONCE = 4
TABLES_AT_ONCE = 1  # more would only get in each other's way
TABLE_FILES_A_PIECE = 500  # of a listing, when it is sent to a process
CALLS_WAITING_MAX = 256  # of one process; beyond that, TierBusy
START_SECONDS = 20.0  # for a process to become ready: it imports Arrow
RESTART = Backoff(0.1, 10.0)  # before a process that died is started again
STEADY_SECONDS = 30.0  # a process that ran this long is restarted at once
CLOSE_SECONDS = 0.5  # for a process to exit before it is killed
REST_BYTES_MAX = 384 * MIB  # memory of an idle process, above which it is replaced; caches and Arrow take 250
BUSY_BYTES_MAX = 768 * MIB  # of a process that is never idle, above which it gets no work; two large segments take 650
NICENESS = 10  # of the processes, so that live traffic comes first
