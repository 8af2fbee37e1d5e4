"""The invariants of a connection after every call: its limits, and sums that agree with their parts."""

from __future__ import annotations

from pydanube.base.limits import (
    HTTP2_HEADER_BLOCK_BYTES_MAX,
    HTTP2_HEADER_MEMO_BLOCKS_MAX,
    HTTP2_QUEUE_BYTES_MAX,
    HTTP2_RESERVED_BYTES_MAX,
    HTTP2_STREAM_QUEUE_BYTES_MAX,
    HTTP2_STREAMS_FORGOTTEN_MAX,
    HTTP2_STREAMS_MAX,
)
from wire.http2.peer import Peer

MESSAGE_BYTES_MAX = 100_000  # that a test sends at once


def check_bounds(peer: Peer) -> None:
    table, reader = peer.server._table, peer.server._reader
    assert len(table.open) <= HTTP2_STREAMS_MAX
    assert len(table.forgotten) <= HTTP2_STREAMS_FORGOTTEN_MAX
    assert len(reader._rest) < 16_384 + 9
    assert len(reader._block) <= HTTP2_HEADER_BLOCK_BYTES_MAX
    assert len(reader._decoder._memo) <= HTTP2_HEADER_MEMO_BLOCKS_MAX
    streams = table.open.values()
    sending, receiving = table.sending, table.receiving
    assert sending.queued == sum(stream.queued for stream in streams)
    assert sending.queued <= HTTP2_QUEUE_BYTES_MAX + MESSAGE_BYTES_MAX
    assert receiving.reserved == sum(stream.reserved for stream in streams) <= HTTP2_RESERVED_BYTES_MAX
    assert set(sending._ready) | set(sending._stalled) | set(sending._starving) | set(receiving._waiting) <= set(
        table.open
    )
    for stream in streams:
        assert stream.queued == sum(map(len, stream.queue or ()))
        assert stream.queued <= HTTP2_STREAM_QUEUE_BYTES_MAX + MESSAGE_BYTES_MAX
        assert stream.credit >= 0 <= stream.held
        assert stream.held + stream.credit <= 65_535 + stream.reserved
        waits = stream.number in sending._ready or stream.number in sending._stalled
        assert bool(stream.queued) == waits, "what has data waits for one window or the other, and nothing else waits"
        assert stream.grown <= sending._grown_max
        assert sending.initial_window + stream.grown <= 0 or stream.number not in sending._stalled
    assert not set(sending._ready) & set(sending._stalled)
    assert not sending._ready or sending.window <= 0 or sending.paused
