"""Key-Shared: one holder per key, in order; a key that waits does not hold up others."""

from __future__ import annotations

from dispatch.desk import DELAY, ONCE, ONCE_DROP, A, B, C, connect, offer
from pydanube.base.ids import ConsumerId
from pydanube.dispatch.events import Deliver, Effect, Poisoned, Run, Skipped
from pydanube.dispatch.explain import Cause, Explanation
from pydanube.dispatch.key_shared import IDLE_KEYS_MAX, KeyShared
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy, PoisonPolicy, Unmatched
from pydanube.dispatch.ring import Filters, Ring


def key_shared(policy: FailurePolicy | None = None, settings: DispatchSettings | None = None) -> KeyShared:
    return KeyShared(policy or FailurePolicy(), settings or DispatchSettings())


def owner(key: str, *consumers: ConsumerId) -> ConsumerId:
    ring = Ring()
    for consumer in consumers:
        ring.join(consumer, Filters(()))
    found = ring.owner(key.encode())
    assert found is not None
    return found


def moving(key: str = "x") -> tuple[ConsumerId, ConsumerId]:
    """Two consumers, of which the second takes over the key when it joins."""
    return next((a, b) for a in (A, B, C) for b in (A, B, C) if a != b and owner(key, a, b) == b)


def offsets(effects: list[Effect]) -> list[int]:
    return [n for e in effects if isinstance(e, Deliver) for n in range(e.first, e.last + 1)]


def test_each_key_goes_to_its_owner_in_order() -> None:
    engine = key_shared()
    connect(engine, 100, A, B, C)
    keys = "abcdefghabcdefgh"
    for effect in offer(engine, 0, 15, keys):
        assert isinstance(effect, Deliver)
        assert {owner(keys[n], A, B, C) for n in range(effect.first, effect.last + 1)} == {effect.consumer}
    assert engine.in_flight == 16


def test_several_messages_of_a_key_may_be_in_flight_with_its_holder() -> None:
    engine = key_shared()
    connect(engine, 100, A)
    assert offer(engine, 0, 3, "xxxx") == [Deliver(A, 0, 3, 0)]


def test_a_key_moves_only_when_its_holder_has_finished() -> None:
    old, new = moving()
    engine = key_shared()
    connect(engine, 10, old)
    offer(engine, 0, 1, "xx")
    connect(engine, 10, new)
    assert offer(engine, 2, 2, "x") == []
    assert engine.explain(2, 0).cause is Cause.KEY_HELD
    engine.acked(0, 0)
    assert engine.poll(0) == []
    engine.acked(1, 1)
    assert engine.poll(0) == [Deliver(new, 2, 2, 0)]


def test_a_key_moves_at_once_when_its_holder_is_gone() -> None:
    old, new = moving()
    engine = key_shared()
    connect(engine, 10, old)
    offer(engine, 0, 2, "xxx")
    connect(engine, 10, new)
    engine.leave(old, 0, crashed=True)
    assert engine.poll(0) == [Deliver(new, 0, 0, 1), Deliver(new, 1, 2, 0)]


def test_a_nack_rewinds_its_key_only() -> None:
    engine = key_shared()
    connect(engine, 100, A)
    offer(engine, 0, 5, "xyxyxy")
    engine.nack(A, 2, 2, 0)
    assert engine.held(A) == [(0, 1), (3, 3), (5, 5)]
    assert offer(engine, 6, 7, "xy") == [Deliver(A, 7, 7, 0)]
    assert engine.poll(DELAY) == [Deliver(A, 2, 2, 1), Deliver(A, 4, 4, 0), Deliver(A, 6, 6, 0)]


def test_a_nacked_message_goes_to_the_same_holder_even_if_the_key_has_moved() -> None:
    old, new = moving()
    engine = key_shared()
    connect(engine, 10, old)
    offer(engine, 0, 1, "xx")
    connect(engine, 10, new)
    engine.nack(old, 0, 0, 0)
    assert offer(engine, 2, 2, "x", now=DELAY) == [Deliver(old, 0, 0, 1), Deliver(old, 1, 1, 0)]
    engine.acked(0, 1)
    assert engine.poll(DELAY) == [Deliver(new, 2, 2, 0)]


def test_after_a_timeout_the_key_leaves_its_holder() -> None:
    old, new = moving()
    engine = key_shared()
    connect(engine, 10, old)
    offer(engine, 0, 1, "xx")
    connect(engine, 10, new)
    due = engine.due()
    assert due is not None
    assert engine.poll(due) == []
    assert engine.poll(due + DELAY) == [Deliver(new, 0, 0, 1), Deliver(new, 1, 1, 0)]


def test_a_key_stays_while_a_later_message_of_it_may_still_be_acknowledged_in_time() -> None:
    """One message is overdue, another was just delivered: the new owner gets neither of them, nor a third."""
    old, new = moving()
    engine = key_shared()
    connect(engine, 10, old)
    offer(engine, 0, 0, "x")
    first_due = engine.due()
    assert first_due is not None
    assert offer(engine, 1, 1, "x", now=first_due - 1) == [Deliver(old, 1, 1, 0)]
    connect(engine, 10, new)
    assert offer(engine, 2, 2, "x", now=first_due) == []
    second_due = engine.due()
    assert second_due is not None
    assert second_due > first_due
    assert engine.poll(second_due) == []
    delivered = engine.poll(second_due + DELAY)
    assert delivered == [Deliver(new, 0, 0, 1), Deliver(new, 1, 2, 0)]


def test_a_key_continues_when_an_overdue_message_is_acknowledged_after_all() -> None:
    engine = key_shared()
    connect(engine, 10, A)
    offer(engine, 0, 0, "x")
    due = engine.due()
    assert due is not None
    offer(engine, 1, 1, "x", now=due - 1)
    assert offer(engine, 2, 2, "x", now=due) == []
    engine.acked(0, 0)
    assert engine.poll(due) == [Deliver(A, 2, 2, 0)]


def test_poison_blocks_its_key_only() -> None:
    engine = key_shared(ONCE)
    connect(engine, 100, A)
    offer(engine, 0, 2, "xyx")
    engine.nack(A, 0, 0, 0)
    assert offer(engine, 3, 4, "xy", now=DELAY) == [Deliver(A, 4, 4, 0)]
    assert engine.explain(0, 0).cause is Cause.POISON_BLOCKS
    assert engine.explain(2, 0).cause is Cause.KEY_BLOCKED
    engine.acked(0, 0)
    assert offsets(engine.poll(DELAY)) == [2, 3]


def test_dropped_poison_is_handed_over_and_its_key_waits() -> None:
    engine = key_shared(ONCE_DROP)
    connect(engine, 100, A)
    offer(engine, 0, 1, "xx")
    engine.nack(A, 0, 0, 0, reason="bad")
    assert engine.poll(0) == [Poisoned(0, 1, PoisonPolicy.DROP, "bad")]
    assert engine.poll(DELAY) == []
    engine.acked(0, 0)
    assert engine.poll(DELAY) == [Deliver(A, 1, 1, 0)]


def test_a_consumer_without_permits_holds_up_only_its_keys_until_the_lookahead_is_full() -> None:
    engine = key_shared(settings=DispatchSettings(lookahead_max=3))
    slow = owner("x", A, B)
    quick = B if slow == A else A
    connect(engine, 0, A, B)
    engine.grant(quick, 100, 0)
    other = next(key for key in "abcdefgh" if owner(key, A, B) == quick)
    assert offsets(offer(engine, 0, 3, f"x{other}x{other}")) == [1, 3]
    assert engine.wants() == 1
    assert offer(engine, 4, 4, "x") == []
    assert engine.wants() == 0
    explanation = engine.explain(5, 0)
    assert (explanation.cause, explanation.key) == (Cause.LOOKAHEAD_FULL, b"x")
    engine.grant(slow, 1, 0)
    assert engine.poll(0) == [Deliver(slow, 0, 0, 0)]
    assert engine.wants() == 1


def test_a_busy_key_does_not_starve_the_others_of_its_consumer() -> None:
    engine = key_shared()
    connect(engine, 1, A)
    offer(engine, 0, 4, "xxxxy")
    engine.grant(A, 1, 0)
    assert engine.poll(0) == [Deliver(A, 4, 4, 0)]


def test_an_unmatched_key_waits_for_a_consumer_that_accepts_it() -> None:
    engine = key_shared()
    engine.join(A, 0, filters=[b"a*"])
    engine.grant(A, 10, 0)
    assert offer(engine, 0, 1, "ab") == [Deliver(A, 0, 0, 0)]
    assert engine.explain(1, 0).cause is Cause.KEY_UNMATCHED
    connect(engine, 10, B)
    assert engine.poll(0) == [Deliver(B, 1, 1, 0)]


def test_an_unmatched_key_is_skipped_if_so_configured_but_never_without_a_consumer() -> None:
    engine = key_shared(settings=DispatchSettings(unmatched=Unmatched.SKIP))
    assert offer(engine, 0, 2, "abb") == []
    engine.join(A, 0, filters=[b"a*"])
    engine.grant(A, 10, 0)
    assert engine.poll(0) == [Skipped(1, 2), Deliver(A, 0, 0, 0)]
    assert engine.waiting == 0


def test_a_single_hot_key_is_delivered_in_ranges() -> None:
    engine = key_shared()
    connect(engine, 1_000, A, B)
    assert len(offer(engine, 0, 499, "x" * 500)) == 1


def test_a_seek_forgets_messages_and_keeps_permits() -> None:
    engine = key_shared(ONCE)
    connect(engine, 10, A)
    offer(engine, 0, 3, "xxyy")
    engine.nack(A, 0, 0, 0)
    engine.reset(0)
    assert (engine.in_flight, engine.waiting, engine.wants(), engine.due()) == (0, 0, 6, None)
    assert offsets(offer(engine, 0, 2, "xyz")) == [0, 1, 2]


def test_a_former_holder_gets_only_what_is_owed_to_it() -> None:
    old, new = moving()
    engine = key_shared()
    connect(engine, 2, old)
    offer(engine, 0, 1, "xx")
    connect(engine, 10, new)
    engine.nack(old, 0, 0, 0)
    assert offer(engine, 2, 2, "x", now=DELAY) == [], "the holder has no permits"
    engine.acked(0, 0)
    engine.grant(old, 10, DELAY)
    assert engine.poll(DELAY) == [Deliver(old, 1, 1, 0)]
    engine.acked(1, 1)
    assert engine.poll(DELAY) == [Deliver(new, 2, 2, 0)]


def test_a_key_whose_owed_messages_are_acked_late_goes_to_its_owner() -> None:
    old, new = moving()
    engine = key_shared()
    connect(engine, 2, old)
    offer(engine, 0, 1, "xx")
    connect(engine, 10, new)
    engine.nack(old, 0, 0, 0)
    offer(engine, 2, 2, "x", now=DELAY)
    engine.acked(0, 1)
    engine.grant(old, 10, DELAY)
    assert engine.poll(DELAY) == [Deliver(new, 2, 2, 0)]


def test_a_key_that_timed_out_while_in_line_goes_to_its_owner_only() -> None:
    old, new = moving()
    engine = key_shared()
    connect(engine, 2, old)
    offer(engine, 0, 1, "xx")
    connect(engine, 10, new)
    engine.nack(old, 1, 1, 0)
    assert engine.poll(DELAY) == [], "owed to the holder, which has no permits"
    for _ in range(2):  # first it is no longer kept for its holder, then the messages there are overdue
        due = engine.due()
        assert due is not None
        assert engine.poll(due) == []
    assert engine.poll(due + DELAY) == [Deliver(new, 0, 1, 1)]


def test_a_key_is_not_kept_forever_for_a_consumer_that_asks_for_nothing_more() -> None:
    old, new = moving()
    engine = key_shared()
    connect(engine, 1, old)
    offer(engine, 0, 0, "x")
    connect(engine, 10, new)
    engine.nack(old, 0, 0, 0)
    assert engine.poll(DELAY) == []
    assert engine.explain(0, DELAY) == Explanation(Cause.NO_PERMITS, consumer=old)
    due = engine.due()
    assert due is not None
    assert engine.poll(due) == [Deliver(new, 0, 0, 1)]


def test_an_ack_of_many_queued_messages_removes_all_of_them() -> None:
    engine = key_shared()
    connect(engine, 1, A)
    offer(engine, 0, 4000, "x" * 4001)
    engine.acked(1, 3999)
    assert (engine.in_flight, engine.waiting) == (1, 1)
    engine.acked(0, 0)
    engine.grant(A, 5, 0)
    assert engine.poll(0) == [Deliver(A, 4000, 4000, 0)]


def test_a_late_ack_of_a_waiting_message_frees_its_key_while_earlier_ones_are_in_flight() -> None:
    engine = key_shared()
    connect(engine, 100, A)
    offer(engine, 0, 2, "xxx")
    engine.nack(A, 1, 1, 0)
    assert engine.poll(0) == []
    engine.acked(1, 1)
    assert engine.poll(0) == [Deliver(A, 2, 2, 0)]


def test_lines_do_not_grow_with_messages_that_are_acked_before_they_are_delivered() -> None:
    engine = key_shared()
    connect(engine, 0, A)
    for offset in range(1_000):
        offer(engine, offset, offset, "x")
        engine.acked(offset, offset)
    member = engine._roster.get(A)
    assert (len(member.line), engine.waiting, len(engine._keys)) == (0, 0, 1)


def test_only_some_empty_keys_are_kept() -> None:
    engine = key_shared()
    connect(engine, 10_000, A)
    for offset in range(2 * IDLE_KEYS_MAX):
        engine.offer(Run(offset, offset, [b"key %d" % offset]), 0)
        engine.poll(0)
        engine.acked(offset, offset)
    assert engine.in_flight == engine.waiting == 0
    assert len(engine._keys) <= IDLE_KEYS_MAX + 1
