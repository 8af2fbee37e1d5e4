"""What nodes of a cluster do together that one alone does not: another leader, a lost answer, a snapshot, members."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from pydanube.base.addresses import HostPort
from pydanube.base.errors import MembershipRefused, MetadataBusy, MetadataDamaged, MetadataUnavailable, SessionExpired
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import KIB, METADATA_REQUESTS_BYTES_MAX
from pydanube.metadata.operations import AddMember, PromoteMember, RemoveMember, Transact, TransferLead
from pydanube.metadata.records import Repeat
from pydanube.raft.entries import next_entry
from pydanube.raft.node import Raft
from pydanube.storage.metadata.raft import SETTINGS, RaftMetadata
from pydanube.wire.peer.metadata import MetadataAnswer, MetadataRequest
from storage.metadata_cluster import ClusterWorld, address
from storage.metadata_world import put, shown

SHORT = replace(SETTINGS, kept_bytes=2 * KIB)  # so little that a follower soon needs a snapshot
Story = Callable[[ClusterWorld], Awaitable[None]]


def run(story: Story) -> None:
    world = ClusterWorld()

    async def main() -> None:
        await story(world)
        for store in world.stores:
            await store.close()

    world.run(main())
    world.end()


class Noted:
    """Links that only note what is sent."""

    def __init__(self, sent: list[object]) -> None:
        self._sent = sent

    def connect(self, peer: NodeIdentity, address: HostPort) -> None: ...

    def disconnect(self, peer: NodeIdentity) -> None: ...

    def send(self, peer: NodeIdentity, message: object, *, urgent: bool = False) -> None:
        self._sent.append(message)


async def leader_of(world: ClusterWorld, among: list[RaftMetadata]) -> RaftMetadata:
    for _ in range(10_000):
        for store in among:
            if store.is_leader:
                return store
        await asyncio.sleep(0.01)
    raise AssertionError("no one is elected")


def test_a_leader_without_a_majority_promises_nothing_and_the_others_go_on() -> None:
    async def story(world: ClusterWorld) -> None:
        former, second, third = await world.form()
        await put(former, a=b"1")
        world.network.isolate("n0")
        lost = asyncio.ensure_future(put(former, a=b"lost"))
        stale = asyncio.ensure_future(former.barrier())
        leader = await leader_of(world, [second, third])
        await put(leader, a=b"2")
        for refused in (lost, stale):
            with pytest.raises(MetadataUnavailable):
                await refused
        assert former.get("a") is not None  # a local read may be old
        world.network.heal()
        await former.barrier()
        assert [shown(store)["a"][0] for store in (former, leader)] == [b"2", b"2"]

    run(story)


def test_a_transaction_that_another_leader_did_not_get_is_made_again_by_it() -> None:
    """Its caller has been told nothing yet, and nothing was changed."""

    async def story(world: ClusterWorld) -> None:
        former, second, third = await world.form()
        world.network.isolate("n0")
        waiting = asyncio.ensure_future(put(former, a=b"1"))
        await put(await leader_of(world, [second, third]), b=b"2")
        world.network.heal()
        assert await waiting == former.revision
        assert {key: value for key, (value, _) in shown(former).items()} == {"a": b"1", "b": b"2"}

    run(story)


def test_the_lost_answer_of_a_transaction_is_given_again_by_another_leader() -> None:
    async def story(world: ClusterWorld) -> None:
        former, second, third = await world.form()
        session = await second.open_session(60)
        named = Repeat(session, 1)
        world.network.cut("n0", "n1", one_way=True)  # the leader hears the question, and its answer is lost
        waiting = asyncio.ensure_future(second.transact([("a", 0)], [("a", b"1")], repeat=named))
        await asyncio.sleep(0.1)
        first = third.get("a")
        assert first is not None
        world.network.isolate("n0")
        assert await waiting == first.version
        assert await third.transact([("a", 0)], [("a", b"1")], repeat=named) == first.version
        world.network.heal()
        await former.barrier()
        assert shown(former)["a"] == (b"1", first.version)

    run(story)


def test_a_watch_misses_nothing_when_the_lead_moves() -> None:
    async def story(world: ClusterWorld) -> None:
        stores = await world.form()
        watches = [store.watch("k") for store in stores]
        revisions = []
        for number in range(30):
            if number % 10 == 9:
                leader = await leader_of(world, stores)
                successor = stores[(stores.index(leader) + 1) % 3]
                await leader.change_members(TransferLead(successor.identity))
            revisions.append(await put(stores[number % 3], **{f"k{number}": b""}))
        for store, watch in zip(stores, watches, strict=True):
            await store.reach(revisions[-1])
            watch.close()
            assert [(change.revision, change.key) async for change in watch] == [
                (revision, f"k{number}") for number, revision in enumerate(revisions)
            ]

    run(story)


def test_watches_see_what_a_snapshot_changes() -> None:
    async def story(world: ClusterWorld) -> None:
        leader, _, away = await world.form(settings=SHORT)
        kept = await put(leader, kept=b"", changed=b"1", gone=b"")
        await away.reach(kept)
        watch = away.watch("")
        world.network.isolate("n2")
        last = 0
        for number in range(20):
            last = await put(leader, changed=bytes(KIB), gone=None, **{f"new{number % 2}": b"%d" % number})
        world.network.heal()
        await away.reach(last)
        assert shown(away) == shown(leader)
        watch.close()
        changes = [change async for change in watch]
        assert [change.revision for change in changes] == sorted(change.revision for change in changes)
        assert {change.key: change.entry for change in changes} == {
            **{key: leader.get(key) for key in ("changed", "new0", "new1")},
            "gone": None,
        }
        assert sum(change.key == "changed" for change in changes) < 20, "there was no snapshot"
        assert away.chain.index == leader.chain.index

    run(story)


def test_a_node_that_got_a_snapshot_starts_with_it_again() -> None:
    async def story(world: ClusterWorld) -> None:
        leader, _, away = await world.form(settings=SHORT)
        world.network.isolate("n2")
        for number in range(20):
            await put(leader, big=bytes(KIB), last=b"%d" % number)
        world.network.heal()
        await away.reach(leader.revision)
        expected = shown(leader)
        await away.close()
        again = world.stores[2] = await RaftMetadata.open(world.disks[2], leader._file._randomness, settings=SHORT)
        assert shown(again) == expected
        world.attach(again, 2)
        await again.reach(await put(again, more=b""))
        assert again.members.voters == leader.members.voters

    run(story)


# -- requests ----------------------------------------------------------------------------------------------------------


def test_a_request_that_comes_twice_or_to_another_term_is_not_carried_out_again() -> None:
    async def story(world: ClusterWorld) -> None:
        leader, asking, _ = await world.form()
        number = asking.node.boot << 32 | 1 << 20
        request = MetadataRequest(number, leader.term, Transact((), (("a", b"1"),)))
        before = leader.revision
        for _ in range(3):
            leader.on_message(asking.identity, request)
        await asyncio.sleep(0.5)
        assert leader.revision == before + 1
        await leader.change_members(TransferLead(asking.identity))
        await leader_of(world, [asking])
        asking.on_message(leader.identity, request)
        leader.on_message(asking.identity, request)
        await asyncio.sleep(0.5)
        assert shown(leader)["a"][1] == before + 1

    run(story)


def test_a_leader_that_was_started_again_does_not_say_that_nothing_was_changed() -> None:
    """It cannot know what its earlier life has carried out in that term."""

    async def story(world: ClusterWorld) -> None:
        leader, asking, _ = await world.form()
        request = MetadataRequest(asking.node.boot << 32 | 1 << 20, leader.term, Transact((), (("a", b"1"),)))
        await leader.close()
        again = world.stores[0] = await RaftMetadata.open(world.disks[0], asking._file._randomness)
        answers: list[object] = []
        again.attach(Noted(answers))
        again.on_message(asking.identity, request)
        world.attach(again, 0)
        assert [answer.code for answer in answers if isinstance(answer, MetadataAnswer)] == ["metadata_unavailable"]

    run(story)


def test_an_answer_to_an_earlier_start_belongs_to_no_request() -> None:
    async def story(world: ClusterWorld) -> None:
        leader, asking, _ = await world.form()
        for number in range(10):
            asking.on_message(leader.identity, MetadataAnswer(number, code="metadata_conflict", text="old"))
            await put(asking, a=b"%d" % number)
        assert asking._cluster.desk.number >> 32 == asking.node.boot

    run(story)


def test_a_leader_whose_link_is_lost_is_not_asked_before_it_is_heard_again() -> None:
    async def story(world: ClusterWorld) -> None:
        leader, asking, other = await world.form()
        world.network.isolate("n0")
        asking.on_lost(leader.identity, True)
        begun = asyncio.get_running_loop().time()
        await put(asking, a=b"1")  # it goes to the next leader, and waits for nothing but that
        assert asyncio.get_running_loop().time() - begun < 1.5
        next_leader = await leader_of(world, [asking, other])
        for store in (asking, other):
            if store is not next_leader:
                store.on_lost(next_leader.identity, True)  # and that one is heard again soon
                await put(store, a=b"2")

    run(story)


def test_requests_that_wait_are_bounded() -> None:
    async def story(world: ClusterWorld) -> None:
        _, asking, _ = await world.form()
        world.network.cut("n0", "n1")
        value = bytes(512 * KIB)
        tasks = [asyncio.ensure_future(put(asking, **{f"k{number}": value})) for number in range(40)]
        await asyncio.sleep(0.05)
        busy = [task for task in tasks if task.done()]
        assert len(busy) == 40 - METADATA_REQUESTS_BYTES_MAX // (512 * KIB + 256)
        assert {type(task.exception()) for task in busy} == {MetadataBusy}
        world.network.heal()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(story)


def test_what_is_known_to_be_committed_can_be_read_before_anyone_is_reached() -> None:
    async def story(world: ClusterWorld) -> None:
        leader, follower, _ = await world.form()
        last = 0
        for number in range(10):
            last = await put(leader, a=b"%d" % number)
        await follower.reach(last)
        await follower.close()
        again = world.stores[1] = await RaftMetadata.open(world.disks[1], leader._file._randomness)
        assert again.revision >= last - 1
        world.attach(again, 1)
        await again.barrier()

    run(story)


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_lives_as_long_as_any_leader_hears_of_it_and_begins_anew_with_each() -> None:
    async def story(world: ClusterWorld) -> None:
        stores = await world.form()
        holder = stores[2]
        session = await holder.open_session(2.0)
        await holder.transact((), [("mine", b"")], session=session)
        await asyncio.sleep(1.5)
        await stores[0].change_members(TransferLead(stores[1].identity))
        leader = await leader_of(world, stores[1:])
        await asyncio.sleep(1.5)  # three seconds without a renewal, but only half of them with this leader
        await holder.keep_alive(session)
        await asyncio.sleep(1.5)
        assert leader.get("mine") is not None
        await asyncio.sleep(1.0)
        assert leader.get("mine") is None
        with pytest.raises(SessionExpired):
            await holder.keep_alive(session)

    run(story)


def test_a_leader_that_was_cut_off_renews_nothing() -> None:
    async def story(world: ClusterWorld) -> None:
        former, second, third = await world.form()
        session = await former.open_session(3.0)
        world.network.isolate("n0")
        renewal = asyncio.ensure_future(former.keep_alive(session))
        await leader_of(world, [second, third])
        await asyncio.sleep(4.0)
        assert not renewal.done()
        world.network.heal()
        with pytest.raises(SessionExpired):
            await renewal

    run(story)


def test_a_node_that_starts_again_ends_the_sessions_that_it_had() -> None:
    async def story(world: ClusterWorld) -> None:
        leader, _, holder = await world.form()
        session = await holder.open_session(3600)
        await holder.transact((), [("mine", b"")], session=session)
        await holder.close()
        again = world.stores[2] = await RaftMetadata.open(world.disks[2], leader._file._randomness)
        world.attach(again, 2)
        kept = await again.open_session(3600)
        for _ in range(100):
            if leader.get("mine") is None:
                break
            await asyncio.sleep(0.1)
        assert leader.get("mine") is None
        await again.keep_alive(kept)

    run(story)


# -- disks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [True, False])
def test_a_leader_whose_disk_is_slow_or_fails_leaves_the_lead(slow: bool) -> None:
    async def story(world: ClusterWorld) -> None:
        stores = await world.form()
        if slow:
            world.disks[0].slow(30.0, only="sync")
        else:
            world.disks[0].fail_next("sync", count=100)
        waiting = asyncio.ensure_future(put(stores[0], a=b"1"))
        leader = await leader_of(world, stores[1:])
        await put(leader, b=b"2")
        world.disks[0].cure()
        await asyncio.gather(waiting, return_exceptions=True)  # it may have been made by the next leader
        with suppress(MetadataUnavailable):  # while a write takes half a minute, it can say nothing
            await stores[0].barrier()
        await asyncio.sleep(30.0)
        await stores[0].barrier()
        assert shown(stores[0]) == shown(leader)

    run(story)


def test_a_node_stops_at_an_entry_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: ClusterWorld) -> None:
        stores = await world.form()
        raft: Raft = stores[0]._raft
        entry = next_entry(raft.log.last, raft.hard.term, 77, b"from a newer version")
        raft._state.append([entry])
        raft.push()
        stores[0].carry_on()
        await asyncio.sleep(1.0)
        stopped: list[bool] = []
        for store in stores:
            with pytest.raises((MetadataDamaged, MetadataUnavailable)) as refused:
                await put(store, a=b"")
            stopped.append("kind 77" in str(refused.value))
        assert sum(stopped) >= 2  # one that hears no more of the others cannot know whether the entry counts

    run(story)


# -- members -----------------------------------------------------------------------------------------------------------


def test_a_node_becomes_a_voter_only_when_it_has_the_log() -> None:
    async def story(world: ClusterWorld) -> None:
        leader, *_ = await world.form(3)
        with pytest.raises(MembershipRefused, match="add it first"):
            await leader.change_members(PromoteMember("ab" * 16))
        await leader.change_members(AddMember("ab" * 16, address(9)))
        with pytest.raises(MembershipRefused, match="entries up to 0"):
            await leader.change_members(PromoteMember("ab" * 16))
        await leader.change_members(RemoveMember("ab" * 16))
        assert len(leader.members.all) == 3

    run(story)


@pytest.mark.parametrize(
    ("identity", "where"), [("short", address(1)), ("AB" * 16, address(1)), ("ab" * 16, "nowhere"), ("ab" * 16, "")]
)
def test_a_member_needs_an_identity_and_an_address(identity: str, where: str) -> None:
    async def story(world: ClusterWorld) -> None:
        (store,) = await world.form(1)
        with pytest.raises(MembershipRefused):
            await store.change_members(AddMember(identity, where))

    run(story)


def test_a_leader_can_be_removed_and_is_told_so() -> None:
    async def story(world: ClusterWorld) -> None:
        former, second, third = await world.form()
        await second.change_members(RemoveMember(former.identity))
        leader = await leader_of(world, [second, third])
        await put(leader, a=b"1")
        assert leader.members.voters == {second.identity, third.identity}
        assert not former.is_leader
        with pytest.raises((MembershipRefused, MetadataUnavailable)):
            await put(former, a=b"2")

    run(story)


def test_the_last_voter_cannot_be_removed() -> None:
    async def story(world: ClusterWorld) -> None:
        (store,) = await world.form(1)
        with pytest.raises(MembershipRefused):
            await store.change_members(RemoveMember(store.identity))

    run(story)


def test_a_cluster_of_one_sends_nothing_and_needs_no_timer() -> None:
    async def story(world: ClusterWorld) -> None:
        (store,) = await world.form(1)
        for number in range(10):
            await put(store, a=b"%d" % number)
        await store.barrier()
        assert world.network.counters["sent"] == 0
        assert store._cluster._timer is None
        await world.join()  # it grows while it runs
        assert world.network.counters["sent"] > 0
        assert shown(world.stores[1]) == shown(store)

    run(story)
