"""What waits for one peer: urgent messages first, parts of long ones, and bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import PeerMessageTooLarge
from pydanube.base.limits import (
    MIB,
    PEER_FRAME_BODY_BYTES_MAX,
    PEER_QUEUE_BYTES_MAX,
    PEER_QUEUE_MESSAGES_MAX,
    PEER_URGENT_BYTES_MAX,
    PEER_URGENT_MESSAGES_MAX,
)
from pydanube.wire.peer.messages import Encoded
from pydanube.wire.peer.outbox import Outbox
from wire.peer.nodes import BERT, open_decoder

BULK, URGENT = 18, 20


def bulk(size: int, number: int = 0) -> Encoded:
    return Encoded(BULK, number, (bytes(size),))


def urgent(number: int = 0, size: int = 24) -> Encoded:
    return Encoded(URGENT, number, (bytes(size),))


def outbox() -> Outbox:
    return Outbox(BERT.identity)


def test_an_urgent_message_is_the_next_frame() -> None:
    waiting = outbox()
    waiting.put(bulk(4 * MIB))
    waiting.put(bulk(10, 1))
    waiting.take(1)
    waiting.put(urgent(7), urgent=True)
    (frame,) = waiting.take(1)
    assert frame[4] == URGENT
    (after,) = waiting.take(1)
    assert (after[4], len(after)) == (BULK, PEER_FRAME_BODY_BYTES_MAX + 36)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 150_000), st.integers(0, 200_000)), max_size=12))
def test_everything_arrives_and_each_kind_in_its_order(steps: list[tuple[bool, int, int]]) -> None:
    waiting, decoder, arrived = outbox(), open_decoder(), []
    for number, (is_urgent, size, taken) in enumerate(steps, start=1):
        message = urgent(number, min(size, 64)) if is_urgent else bulk(size, number)
        assert waiting.put(message, urgent=is_urgent)
        arrived += [frame for data in waiting.take(taken) for frame in decoder.feed(data)]
    arrived += [frame for data in waiting.take(1 << 40) for frame in decoder.feed(data)]
    for kind, kept in ((BULK, False), (URGENT, True)):
        said = [number for number, (is_urgent, _, _) in enumerate(steps, start=1) if is_urgent is kept]
        assert [frame.request for frame in arrived if frame.kind == kind] == said
    assert not waiting
    assert (waiting.take(1), waiting.dropped) == ([], 0)


def test_what_exceeds_a_bound_is_dropped_and_counted() -> None:
    for message, is_urgent, most in (
        (bulk(PEER_QUEUE_BYTES_MAX // 4), False, 3),
        (bulk(0), False, PEER_QUEUE_MESSAGES_MAX),
        (urgent(0, PEER_URGENT_BYTES_MAX // 4), True, 3),
        (urgent(0, 0), True, PEER_URGENT_MESSAGES_MAX),
    ):
        waiting = outbox()
        assert [waiting.put(message, urgent=is_urgent) for _ in range(most + 2)] == [True] * most + [False] * 2
        assert waiting.dropped == 2


def test_urgent_messages_have_room_while_others_fill_theirs() -> None:
    waiting = outbox()
    while waiting.put(bulk(1 * MIB)):
        pass
    assert waiting.put(urgent(), urgent=True)


def test_room_is_given_back() -> None:
    waiting = outbox()
    for _ in range(3):
        assert waiting.put(bulk(PEER_QUEUE_BYTES_MAX - 100))
        waiting.take(1 << 40)
        assert not waiting


def test_a_lost_link_drops_everything_and_counts_it() -> None:
    waiting = outbox()
    for number in range(3):
        waiting.put(bulk(100_000, number))
    waiting.put(urgent(), urgent=True)
    waiting.take(100)  # the urgent one, and the first part
    waiting.clear()
    assert (waiting.dropped, bool(waiting), waiting.take(1)) == (3, False, [])
    assert waiting.put(bulk(PEER_QUEUE_BYTES_MAX - 100))


def test_an_urgent_message_fits_one_frame() -> None:
    with pytest.raises(PeerMessageTooLarge):
        outbox().put(urgent(0, PEER_FRAME_BODY_BYTES_MAX + 1), urgent=True)
