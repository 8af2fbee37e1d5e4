"""One node by itself: what it does and refuses to do in the situations that storms seldom bring about."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pydanube.base.errors import LogDiverged, MembershipRefused, MetadataBusy, NotLeader
from pydanube.raft.entries import Entry, EntryKind, Member, Members, Point, next_entry
from pydanube.raft.log import Log
from pydanube.raft.messages import Alive, Append, Appended, AskVote, Heartbeat, Message, TakeLead, Vote
from pydanube.raft.node import Raft, Work
from pydanube.raft.settings import RaftSettings
from pydanube.raft.state import Hard, Role


def entries_of(term: int, count: int, after: Point | None = None) -> list[Entry]:
    found: list[Entry] = []
    for number in range(count):
        found.append(next_entry(found[-1].point if found else after or Point(), term, EntryKind.DATA, b"%d" % number))
    return found


def node(
    entries: Sequence[Entry] = (), voters: str = "abc", settings: RaftSettings | None = None, **more: bool
) -> Raft:
    """Node a, with these entries on disk. `more` names further members, and says whether they vote."""
    members = Members.of([*map(Member, voters), *(Member(name, "", voter) for name, voter in more.items())])
    hard = Hard(entries[-1].term if entries else 0)
    return Raft("a", hard, Log(Point(), entries), members, settings or RaftSettings(), lambda _: 0, 0.0)


def write(raft: Raft, now: float) -> Work:
    work = raft.take()
    assert work is not None
    raft.written(now)
    return work


def elect(raft: Raft, now: float = 1.0) -> Raft:
    """Makes it the leader, by the vote of b."""
    raft.elapse(now)
    term = raft.hard.term + 1
    if len(raft.members.voters) > 1:
        raft.receive(now, "b", Vote(term, granted=True, trial=True))
        raft.receive(now, "b", Vote(term, granted=True))
    write(raft, now)
    assert raft.role is Role.LEADER
    raft.outbox.clear()
    return raft


def sent_to(raft: Raft, member: str) -> list[Message]:
    found = [message for to, message in raft.outbox if to == member]
    raft.outbox.clear()
    return found


# -- elections ---------------------------------------------------------------------------------------------------------


def test_a_candidate_counts_its_own_vote_once_it_is_durable() -> None:
    raft = node()
    raft.elapse(1.0)
    raft.receive(1.0, "b", Vote(1, granted=True, trial=True))
    raft.receive(1.0, "b", Vote(1, granted=True))
    assert raft.role is Role.CANDIDATE
    write(raft, 1.0)
    assert raft.role is Role.LEADER


def test_a_node_that_hears_its_leader_ignores_elections() -> None:
    raft = node()
    raft.receive(1.0, "b", Heartbeat(1, 1, 0))
    for trial in (True, False):
        raft.outbox.clear()
        raft.receive(1.2, "c", AskVote(2, Point(), trial=trial))
        assert (raft.hard.term, raft.outbox) == (1, [])
    raft.receive(1.6, "c", AskVote(2, Point(), trial=True))
    assert sent_to(raft, "c") == [Vote(2, granted=True, trial=True)]


def test_a_leader_that_hears_from_no_majority_steps_down_and_gives_up_its_reads() -> None:
    raft = elect(node())
    raft.receive(1.1, "b", Appended(1, True, 1))
    raft.read(1.1, "ticket")
    raft.elapse(1.5)  # others have answered since it was elected
    assert raft.role is Role.LEADER
    raft.elapse(2.1)
    assert (raft.role, raft.leader) == (Role.FOLLOWER, None)
    assert raft.ready_reads == [("ticket", None)]
    raft.receive(2.1, "c", AskVote(2, Point(9, 1), trial=True))
    assert Vote(2, granted=True, trial=True) in sent_to(raft, "c"), "it is loyal to its own lead"


def test_a_node_whose_disk_fails_stands_again_only_after_a_while() -> None:
    raft = elect(node())
    raft.step_aside(1.0)
    raft.outbox.clear()
    raft.elapse(5.0)
    assert raft.outbox == []
    raft.elapse(11.5)
    assert AskVote(2, raft.log.last, trial=True) in sent_to(raft, "b")


def test_a_leader_that_steps_down_is_loyal_to_no_one() -> None:
    raft = node()
    raft.receive(1.0, "b", Heartbeat(1, 1, 0))
    raft.receive(1.0, "b", TakeLead(1))
    write(raft, 1.0)
    raft.receive(1.0, "b", Vote(2, granted=True))
    assert raft.role is Role.LEADER
    raft.step_aside(1.1)
    raft.receive(1.2, "c", AskVote(3, raft.log.last, trial=True))
    assert sent_to(raft, "c")[-1] == Vote(3, granted=True, trial=True)


def test_the_only_member_leads_with_one_write() -> None:
    raft = node(voters="a")
    raft.campaign(1.0)
    assert raft.role is Role.LEADER
    assert not raft.is_serving
    work = write(raft, 1.0)
    assert (work.hard, [entry.kind for entry in work.entries]) == (Hard(1, "a"), [EntryKind.NOTHING])
    raft.log.applied = raft.appliable
    assert raft.is_serving


def test_the_only_voter_waits_for_its_vote_to_be_durable_if_others_would_hear_of_its_lead() -> None:
    raft = node(voters="a", d=False)
    raft.campaign(1.0)
    assert raft.role is Role.CANDIDATE
    write(raft, 1.0)
    assert raft.role is Role.LEADER


def test_what_the_only_voter_has_on_disk_is_committed() -> None:
    assert node(entries_of(1, 3), voters="a").appliable == 3
    assert node(entries_of(1, 3)).appliable == 0


@pytest.mark.parametrize("learners", [{}, {"d": False}])
def test_what_the_only_voter_could_not_write_is_void(learners: dict[str, bool]) -> None:
    raft = elect(node(entries_of(1, 2), voters="a", **learners))
    if raft.log.durable < raft.log.last.index:
        write(raft, 1.0)
    raft.propose(1.1, [b"kept"])
    write(raft, 1.1)
    raft.propose(1.2, [b"fails"])
    assert raft.take() is not None
    raft.propose(1.2, [b"builds on it"])
    raft.not_written(1.3)
    kept = [entry.data for entry in raft.log.after(0) if entry.kind == EntryKind.DATA]
    assert kept == [b"0", b"1", b"kept"]
    work = write(raft, 1.4)
    assert (work.cut, work.hard.term) == (4, 3)
    if learners:
        write(raft, 1.4)
    assert raft.role is Role.LEADER
    assert raft.log.committed == raft.log.last.index == 5


def test_a_follower_that_will_be_the_only_voter_keeps_what_is_committed_elsewhere() -> None:
    """A leader that leaves tells the last voter so, whose disk fails: that entry is already committed."""
    raft = node(voters="ab")
    alone = Members.of([Member("a"), Member("b", voter=False)])
    entry = next_entry(Point(), 1, EntryKind.MEMBERS, alone.encode())
    raft.receive(1.0, "b", Append(1, Point(), (entry,), 1))
    assert raft.take() is not None
    raft.not_written(1.1)
    assert raft.log.last == entry.point


def test_messages_wait_until_all_that_they_promise_is_written() -> None:
    raft = node(settings=RaftSettings(write_bytes=100))
    entries = entries_of(1, 3)
    raft.receive(1.0, "b", Append(1, Point(), tuple(entries), 0))
    works = [write(raft, 1.0) for _ in range(3)]
    assert [len(work.entries) for work in works] == [1, 1, 1]
    assert [work.send for work in works] == [(), (), (("b", Appended(1, True, 3)),)]
    assert raft.take() is None


def test_a_leader_whose_disk_fails_hands_over_to_a_voter_that_answers() -> None:
    raft = elect(node(d=False))
    for member in "bcd":
        raft.receive(1.0, member, Appended(1, True, 1))
    raft.elapse(1.1)
    for member in "cd":  # b has died since
        raft.receive(1.1, member, Alive(1, 2))
    raft.outbox.clear()
    raft.step_aside(1.2)
    assert raft.outbox == [("c", TakeLead(1))]


# -- what is committed, and what is durable ----------------------------------------------------------------------------


def test_entries_of_earlier_terms_are_committed_only_with_one_of_the_present_term() -> None:
    raft = elect(node(entries_of(1, 2)))
    write(raft, 1.0)
    raft.receive(1.0, "b", Appended(2, True, 2))
    assert raft.log.committed == 0
    raft.receive(1.0, "b", Appended(2, True, 3))
    assert raft.log.committed == 3


def test_answers_to_a_leader_of_an_earlier_term_do_not_count() -> None:
    raft = elect(node(entries_of(1, 2)))
    write(raft, 1.0)
    raft.receive(1.0, "b", Appended(1, True, 3))  # its third entry may be another one
    assert raft.log.committed == 0


def test_a_follower_commits_only_what_it_has_in_common_with_its_leader() -> None:
    raft = node(entries_of(1, 5))
    raft.receive(1.0, "b", Append(2, entries_of(1, 2)[-1].point, (), 5))
    assert raft.log.committed == 2


def test_what_was_cut_off_during_its_write_is_not_durable() -> None:
    old = entries_of(1, 5)
    new = entries_of(2, 2, after=old[2].point)
    raft = node()
    raft.receive(1.0, "b", Append(1, Point(), tuple(old), 0))
    assert raft.take() is not None
    raft.receive(1.1, "c", Append(2, old[2].point, tuple(new), 0))
    raft.written(1.2)
    assert raft.log.durable == 3
    work = write(raft, 1.3)
    assert (work.cut, work.entries) == (3, tuple(new))
    assert raft.log.durable == 5


def test_a_write_that_failed_is_void_wherever_it_ended() -> None:
    old = entries_of(1, 3)
    raft = node(old[:1])
    raft.receive(1.0, "b", Append(1, old[0].point, tuple(old[1:]), 0))
    assert raft.take() is not None
    raft.not_written(1.1)
    new = entries_of(2, 1, after=old[0].point)
    raft.receive(1.2, "c", Append(2, old[0].point, tuple(new), 0))
    work = raft.take()
    assert work is not None
    assert (work.cut, work.entries) == (1, tuple(new)), "entries of the failed write would stay on disk"


def test_promises_of_an_older_term_are_not_kept() -> None:
    old = entries_of(1, 5)
    new = entries_of(2, 1, after=old[2].point)
    raft = node(old[:1])
    raft.receive(1.0, "b", Append(1, old[0].point, tuple(old[1:]), 0))  # the answer waits for the disk
    raft.receive(1.1, "c", Append(2, old[2].point, tuple(new), 0))
    assert write(raft, 1.2).send == (("c", Appended(2, True, 4)),)


def test_a_disk_that_hangs_lets_no_answers_pile_up() -> None:
    raft = node()
    raft.receive(1.0, "b", Append(1, Point(), tuple(entries_of(1, 1)), 0))
    assert raft.take() is not None  # and it is never written
    for _ in range(1_000):
        raft.receive(1.0, "b", Append(1, Point(), tuple(entries_of(1, 2)), 0))
    raft.written(1.0)
    assert write(raft, 1.0).send == (("b", Appended(1, True, 2)),)


def test_a_work_is_out_until_the_host_has_written_it() -> None:
    raft = node()
    raft.receive(1.0, "b", Append(1, Point(), tuple(entries_of(1, 1)), 0))
    assert raft.take() is not None
    raft.receive(1.0, "b", Append(1, entries_of(1, 1)[-1].point, tuple(entries_of(1, 2)[1:]), 0))
    assert raft.take() is None


def test_committed_entries_are_applied_once_they_are_durable_here() -> None:
    raft = node()
    raft.receive(1.0, "b", Append(1, Point(), tuple(entries_of(1, 2)), 2))
    assert (raft.log.committed, raft.appliable) == (2, 0)
    write(raft, 1.0)
    assert raft.appliable == 2


def test_a_leader_that_sends_another_entry_than_the_committed_one_stops_the_node() -> None:
    raft = node(entries_of(1, 3))
    raft.receive(1.0, "b", Append(1, entries_of(1, 2)[-1].point, (), 2))
    other = entries_of(2, 1, after=entries_of(1, 1)[-1].point)[-1].point
    with pytest.raises(LogDiverged):
        raft.receive(1.0, "b", Append(2, other, (), 2))


def refused(call: Callable[[], object]) -> None:
    """Calls it until it is refused."""
    for _ in range(1_000):
        call()


# -- bounds and costs --------------------------------------------------------------------------------------------------


class Counting(list[Entry]):
    copied = 0

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        found = super().__getitem__(at)
        if isinstance(at, slice):
            self.copied += len(found)
        return found


def test_a_message_copies_only_the_entries_that_it_has() -> None:
    log = Log(Point(), entries_of(1, 10_000))
    log._entries = watched = Counting(log._entries)
    found = log.after(100, 5 * log._entries[100].size)
    assert [each.index for each in found] == [101, 102, 103, 104, 105]
    assert watched.copied == 5


def test_a_member_gets_only_so_much_ahead_of_its_answers() -> None:
    raft = elect(node(settings=RaftSettings(in_flight_max=3)))
    raft.receive(1.0, "b", Appended(1, True, 1))
    raft.outbox.clear()
    for _ in range(10):
        raft.propose(1.0, [b"1"])
    assert len(sent_to(raft, "b")) == 3
    raft.receive(1.0, "b", Appended(1, True, 3))
    assert [len(each.entries) for each in sent_to(raft, "b") if isinstance(each, Append)] == [7]


def test_empty_proposals_have_a_bound_too() -> None:
    raft = elect(node(settings=RaftSettings(uncommitted_bytes_max=10_000)))
    with pytest.raises(MetadataBusy):
        refused(lambda: raft.propose(1.0, [b""]))


def test_waiting_reads_have_a_bound() -> None:
    raft = elect(node(settings=RaftSettings(reads_waiting_max=10)))
    with pytest.raises(MetadataBusy):
        refused(lambda: raft.read(1.0, "ticket"))


# -- reads -------------------------------------------------------------------------------------------------------------


def test_a_read_waits_until_the_leader_has_committed_in_its_term() -> None:
    raft = elect(node(entries_of(1, 2)))
    write(raft, 1.0)
    raft.read(1.0, "ticket")
    raft.elapse(1.1)
    raft.receive(1.1, "b", Alive(2, 2))
    assert raft.ready_reads == []
    raft.receive(1.2, "b", Appended(2, True, 3))
    raft.receive(1.2, "b", Alive(2, 3))
    assert raft.ready_reads == [("ticket", 3)]


def test_a_read_is_proven_only_by_answers_to_a_round_that_began_after_it() -> None:
    raft = elect(node())
    write(raft, 1.0)
    raft.receive(1.0, "b", Appended(1, True, 1))
    raft.read(1.0, "ticket")
    raft.receive(1.0, "b", Alive(1, 1))
    raft.receive(1.0, "d", Alive(1, 2))  # not a voter
    assert raft.ready_reads == []
    raft.receive(1.0, "b", Alive(1, 2))
    assert raft.ready_reads == [("ticket", 1)]


def test_rounds_for_reads_send_no_entries_again() -> None:
    raft = elect(node())
    raft.receive(1.0, "b", Appended(1, True, 1))
    write(raft, 1.0)
    raft.propose(1.0, [b"1"])  # b takes a while to write it, and c does not answer
    raft.outbox.clear()
    for number in range(50):
        raft.read(1.01, number)
        raft.receive(1.01, "b", Alive(1, 2 + number))
    assert len(raft.ready_reads) == 50
    assert [each for _, each in raft.outbox if isinstance(each, Append)] == []
    raft.elapse(1.15)
    raft.elapse(1.3)
    assert [to for to, each in raft.outbox if isinstance(each, Append)] == ["c", "b", "c"], "lost messages go again"


# -- members and the lead ----------------------------------------------------------------------------------------------


def test_members_change_one_at_a_time_and_only_once_the_leader_is_settled() -> None:
    raft = elect(node(entries_of(1, 2), d=False, e=False))
    write(raft, 1.0)
    promoted = Members.of([*map(Member, "abcd"), Member("e", "", voter=False)])
    with pytest.raises(MembershipRefused):
        raft.change(1.0, promoted)
    raft.receive(1.0, "b", Appended(2, True, 3))
    with pytest.raises(MembershipRefused):
        raft.change(1.0, Members.of(map(Member, "abcde")))
    raft.change(1.0, promoted)
    with pytest.raises(MembershipRefused):
        raft.change(1.0, Members.of(map(Member, "abcde")))


def test_learners_and_unknown_nodes_do_not_count() -> None:
    raft = elect(node(d=False, e=False))
    write(raft, 1.0)
    for member in "dex":
        raft.receive(1.0, member, Appended(1, True, 1))
    assert raft.log.committed == 0


def test_members_are_those_of_the_log_after_a_restart_too() -> None:
    changed = next_entry(Point(), 1, EntryKind.MEMBERS, Members.of(map(Member, "ab")).encode())
    raft = node([changed])
    assert raft.members.voters == {"a", "b"}
    assert raft.members_at(0).voters == {"a", "b", "c"}
    raft.receive(1.0, "b", Append(2, Point(), tuple(entries_of(2, 1)), 0))
    assert raft.members.voters == {"a", "b", "c"}, "the entry was cut off, so the change ends"


def test_a_leader_that_leaves_steps_down_once_that_is_committed() -> None:
    raft = elect(node())
    write(raft, 1.0)
    raft.receive(1.0, "b", Appended(1, True, 1))
    raft.change(1.0, Members.of(map(Member, "bc")))
    write(raft, 1.0)
    raft.receive(1.0, "b", Appended(1, True, 2))
    assert raft.role is Role.LEADER
    raft.receive(1.0, "c", Appended(1, True, 2))
    assert (raft.role, raft.log.committed) == (Role.FOLLOWER, 2)


def test_a_successor_takes_the_lead_after_it_has_everything() -> None:
    raft = elect(node())
    raft.receive(1.0, "b", Appended(1, True, 1))
    raft.propose(1.0, [b"1"])
    raft.outbox.clear()
    raft.transfer(1.0, "b")
    assert TakeLead(1) not in sent_to(raft, "b")
    raft.receive(1.0, "b", Appended(1, True, 2))
    assert sent_to(raft, "b")[-1] == TakeLead(1)
    with pytest.raises(NotLeader):
        raft.propose(1.0, [b"2"])
    raft.receive(1.4, "b", Alive(1, 1))
    raft.elapse(1.5)
    assert raft.propose(1.5, [b"2"]).index == 3, "the successor does not answer, so this node continues"


# -- snapshots ---------------------------------------------------------------------------------------------------------


def leader_with_snapshot() -> Raft:
    """A leader that made a snapshot at 8 of its ten entries, and whose follower c has nothing."""
    raft = elect(node(entries_of(1, 9), settings=RaftSettings(kept_bytes=0)))
    write(raft, 1.0)
    raft.receive(1.0, "b", Appended(2, True, 10))
    raft.log.applied = raft.appliable
    raft.forget(8)
    raft.receive(1.0, "c", Appended(2, False, 0))
    assert raft.snapshots == ["c"]
    return raft


def test_a_member_gets_another_snapshot_if_the_log_begins_later_by_now() -> None:
    raft = leader_with_snapshot()
    raft.snapshots.clear()
    raft.propose(1.0, [b"1"])
    write(raft, 1.0)
    raft.receive(1.0, "b", Appended(2, True, 11))
    raft.log.applied = raft.appliable
    raft.forget(11)
    raft.receive(1.1, "c", Appended(2, True, 8))  # the first snapshot has arrived
    assert raft.snapshots == ["c"]
    raft.receive(1.2, "c", Appended(2, True, 11))
    raft.propose(1.2, [b"2"])
    assert [each for each in sent_to(raft, "c") if isinstance(each, Append)]


def test_a_node_that_leads_no_more_owes_nobody_a_snapshot() -> None:
    raft = leader_with_snapshot()
    raft.receive(1.1, "b", Heartbeat(3, 1, 0))
    assert raft.snapshots == []


def test_a_snapshot_brings_its_members() -> None:
    raft = node()
    members = Members.of(map(Member, "abd"))
    raft.install(1.0, "b", 1, entries_of(1, 3)[-1].point, members)
    assert (raft.members, raft.members_at(3)) == (members, members)


def test_a_snapshot_of_an_older_leader_is_ignored() -> None:
    raft = node()
    raft.receive(1.0, "b", Heartbeat(2, 1, 0))
    raft.install(1.0, "c", 1, entries_of(1, 3)[-1].point, raft.members)
    assert (raft.log.last, raft.leader) == (Point(), "b")


def test_a_snapshot_that_differs_from_the_log_stops_the_node() -> None:
    raft = node(entries_of(1, 3))
    with pytest.raises(LogDiverged):
        raft.install(1.0, "b", 1, Point(2, 1, b"x" * 16), raft.members)


def test_a_leader_takes_no_snapshot_of_its_own_term() -> None:
    raft = elect(node())
    with pytest.raises(LogDiverged):
        raft.install(1.0, "b", 1, Point(9, 1, b"x" * 16), raft.members)


def test_the_log_knows_its_bytes_and_forgets_only_what_exceeds_those_to_keep() -> None:
    entries, point = [], Point()
    for number in range(20):
        entries.append(next_entry(point, 1, EntryKind.DATA, bytes(number)))
        point = entries[-1].point
    log = Log(Point())
    log.append(entries)
    assert log.bytes == sum(entry.size for entry in entries)
    log.cut(15)
    log.commit(10)
    log.applied = 10
    log.forget(10, kept_bytes=sum(entry.size for entry in entries[7:15]))
    assert (log.start.index, log.bytes) == (7, sum(entry.size for entry in entries[7:15]))
    log.forget(10, kept_bytes=0)
    assert (log.start.index, log.bytes) == (10, sum(entry.size for entry in entries[10:15]))
    log.restart(Point(30, 2, bytes(16)))
    assert log.bytes == 0
