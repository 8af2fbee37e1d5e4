"""The plan of a seed: how large the world is, what is published, and which faults happen when. Pure data.

A plan can be run again with fewer faults or messages, which is how a failing seed is shrunk.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from pydanube.base.durability import Durability
from pydanube.stream.record import Copies

# kind: row of the fault matrix, and what happens
FAULTS = {
    "kill": "P1: kill -9 of a storage node or broker; it restarts",
    "power": "D1: one machine loses what was not synced",
    "power_all": "D2: all machines lose power at once",
    "write_error": "D8: a write fails",
    "sync_error": "D8: an fsync fails",
    "name_error": "D8: a rename, create, remove or directory sync fails",
    "full": "D9: the disk is full for a while",
    "slow": "D10: a disk takes seconds",
    "isolate": "N1: one machine is cut off from all others",
    "one_way": "N1: one direction between two machines is cut",
    "lossy": "N2: messages everywhere are lost, duplicated and late",
    "late": "N5: messages arrive very late, in another epoch",
    "pause": "P4: a process freezes, then continues",
    "clock": "T1: a wall clock jumps, freezes or drifts",
    "rival": "M3: a second broker takes a topic that has an owner",
    "wipe": "R1: a storage node loses its disk and comes back as a new one",
    "damage": "D6: bits flip on one storage node",
    "silent": "N1: one storage node is cut off until everything heals",
    "deaf": "R3: a storage node does not delete some ledgers until everything heals, so later ones go first",
    "unmounted": "R2: a broker is started with one of its directories missing, or another one in its place",
    "split": "N1: the machines are divided into halves, or into groups that only one machine reaches",
    "members": "M1: a node leaves the cluster and comes back, or the lead moves",
    "voting": "P2: only one node reaches the others, dies, and dies again as soon as it has voted",
    "deposed": "N5: what the leader says arrives when others have elected another one, and it is dead",
    "frozen": "P4: the leader freezes, and wakes up cut off when others have elected another one",
    "greedy": "M1: the leader is cut off, and asked to remove all the others at once",
    "catalogue": "the catalogue answers late or not at all",
    "objects_fail": "N6: requests to object storage fail",
    "objects_unsure": "N6: requests are carried out, but the answers are lost",
    "objects_slow": "N6: requests take seconds",
    "objects_hang": "N6: some requests take effect seconds later, even if their caller has given up",
    "objects_stale": "N6: listings show an earlier state",
    "objects_lost": "N6: an object vanishes until everything heals",
    "objects_damaged": "N6: an object changes or is cut off until everything heals",
    "reset": "N2: a connection between clients and a broker is reset",
    "stall": "N2: clients do not read from a connection for a while, so its socket pushes back",
}
OBJECTS = tuple(kind for kind in FAULTS if kind.startswith("objects_"))
OF_CLIENTS = ("reset", "stall")  # added to every plan with topics
# Only in the profiles that are about them.
NARROW = ("silent", "deaf", "unmounted", "split", "members", "voting", "deposed", "frozen", "greedy")
# The faults that a profile draws from. `mixed` draws a subset per seed, and none for every fourth seed.
PROFILES: dict[str, tuple[str, ...]] = {
    "mixed": tuple(kind for kind in FAULTS if kind not in (*OBJECTS, *OF_CLIENTS, *NARROW)),  # see below
    "power": ("power", "power_all", "kill"),
    "disk": ("write_error", "sync_error", "name_error", "kill", "power"),
    "full": ("full", "kill", "power"),
    "slow": ("slow", "kill"),
    "busy": ("slow", "kill"),
    "silent": ("silent", "silent", "rival", "kill", "power_all"),
    "partition": ("isolate", "one_way", "lossy", "kill"),
    "late": ("late", "lossy", "rival", "kill"),
    "lossy": ("lossy", "lossy", "rival", "kill"),
    "owners": ("rival", "pause", "isolate", "kill"),
    "wipe": ("wipe", "damage", "kill", "isolate"),
    "sweep": ("deaf", "deaf", "kill", "power", "rival"),
    "clock": ("clock", "clock", "rival", "kill", "power"),
    "storm": ("pause", "power", "isolate", "one_way"),
    "churn": ("kill", "power", "clock"),
    "seek": ("kill", "power", "power_all", "write_error", "slow"),
    "poison": ("kill", "power"),
    "producers": ("kill", "power", "isolate", "lossy", "late", "rival", "write_error", "sync_error"),
    "state": ("kill", "power", "write_error", "sync_error", "slow", "full"),
    "tier": ("kill", "power", "rival", "pause", "isolate", "catalogue", *OBJECTS),
    "mounts": ("unmounted", "unmounted", "kill", "power"),
    "metadata": (
        "kill",
        "kill",
        "power",
        "power_all",
        "pause",
        "isolate",
        "one_way",
        "split",
        "lossy",
        "late",
        "slow",
        "full",
        "write_error",
        "sync_error",
        "name_error",
        "clock",
        "members",
        "members",
        "wipe",
        "voting",
        "deposed",
    ),
    "elections": (
        "voting",
        "voting",
        "deposed",
        "deposed",
        "frozen",
        "frozen",
        "greedy",
        "kill",
        "pause",
        "isolate",
        "one_way",
        "late",
    ),
    "sinks": ("kill", "kill", "power", "power", "write_error", "sync_error", "name_error", "full", "slow"),
}
# What happens to topics besides faults, in the profiles about them: L1, L2, L4, P3 of the matrix.
TRAITS: dict[str, tuple[str, ...]] = {
    "churn": ("churn",),
    "seek": ("seek", "retention"),
    "poison": ("poison", "churn"),
    "producers": (),
    "state": ("poison", "seek", "small_parts", "visitors"),
    "busy": (),
    "clock": ("retention", "ttl"),
    "tier": ("tier", "seek", "truncate"),
    "mixed": ("churn", "seek", "retention", "poison", "ttl", "tier", "truncate"),
}
COPIES = (
    Copies(1, 1, 1),
    Copies(1, 1, 1),
    Copies(3, 3, 2),
    Copies(3, 3, 2),
    Copies(3, 2, 2),
    Copies(4, 3, 2),
    Copies(5, 3, 2),
    Copies(5, 5, 3),
)
BUSY_BYTES = 7_000  # one batch of the largest size, or a few small ones, may wait for a journal


@dataclass(frozen=True, slots=True)
class Fault:
    at: float
    kind: str
    target: int  # modulo the number of candidates
    seconds: float  # how long it lasts
    amount: float  # its meaning depends on the kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    profile: str = "mixed"
    nodes: int
    brokers: int
    embedded: bool  # one process with its own storage node, like `danube standalone`
    streams: int = 1
    copies: Copies
    durabilities: tuple[Durability, ...] = (Durability.FSYNC,)
    data_directories: int = 1
    journal_apart: bool = False
    file_bytes: int
    ledger_bytes: int
    messages: int  # batches that are sent to each stream
    seconds: float  # until everything heals
    trims: bool = False
    faults: tuple[Fault, ...] = ()
    topics: bool = False  # whole topics with producers and consumers, instead of bare streams
    traits: tuple[str, ...] = ()  # of topics
    pending_bytes: int | None = None  # that may wait for a journal; None for the default

    @property
    def only_metadata(self) -> bool:
        """Whether the machines agree on metadata, and store nothing else."""
        return self.profile in ("metadata", "elections")

    @property
    def whole_broker(self) -> bool:
        """Whether one process is a whole broker with metadata, for jobs that write exactly once."""
        return self.profile in ("sinks", "mounts")

    def name_of(self, number: int) -> str:
        """The name of a stream or topic."""
        return f"/default/t{number}" if self.topics else f"t{number}"

    def only(self, faults: tuple[int, ...] | None = None, messages: int | None = None) -> Plan:
        """The same plan with only some of its faults, or fewer messages."""
        chosen = self.faults if faults is None else tuple(self.faults[index] for index in faults)
        return replace(self, faults=chosen, messages=self.messages if messages is None else messages)


def plan_for(seed: int, profile: str = "mixed", *, scale: float = 1.0) -> Plan:
    draw = random.Random(f"{profile}/{seed}")
    kinds = _kinds(draw, seed, profile)
    topics = _has_topics(seed, profile)
    copies = draw.choice(COPIES)
    if topics and draw.random() < 0.7:  # topics matter more here than copies
        copies = COPIES[0]
    if profile in ("wipe", "owners", "partition", "late", "lossy", "silent"):
        copies = draw.choice([some for some in COPIES if some.replicas >= 3 and some.ack < some.write])
    if profile == "busy" and seed % 4:  # all streams share one journal
        copies = COPIES[0]
    embedded = copies.replicas == 1 and draw.random() < 0.7 and not {"rival", "isolate"} & set(kinds)
    if copies.ack == copies.write or copies.ack < 2:
        kinds = tuple(kind for kind in kinds if kind not in ("wipe", "damage"))
    nodes = 1 if embedded else min(5, copies.replicas + draw.choice((0, 0, 1)))
    seconds = draw.uniform(4.0, 12.0) * scale
    streams = draw.choice((1, 1, 1, 2) if topics else (1, 1, 2, 3))
    count = 0 if not kinds else max(1, round(draw.uniform(2, 9) * scale))
    sizes = ((60, 100, 140) if profile == "tier" else (20, 40, 60)) if topics else (60, 120, 200)
    faults = sorted((_fault(draw, kinds, seconds) for _ in range(count)), key=lambda fault: fault.at)
    plan = Plan(
        seed=seed,
        profile=profile,
        nodes=nodes,
        brokers=1 if embedded else 2,
        embedded=embedded,
        streams=streams,
        copies=copies,
        durabilities=tuple(Durability.BUFFERED if draw.random() < 0.2 else Durability.FSYNC for _ in range(streams)),
        data_directories=draw.choice((1, 1, 1, 2)),
        journal_apart=draw.random() < 0.2,
        file_bytes=draw.choice((64, 96) if topics else (16, 24, 48)) * 4096,
        ledger_bytes=draw.choice((4_000, 20_000, 1_000_000)),
        messages=round(draw.choice(sizes) * scale),
        seconds=seconds,
        trims=draw.random() < 0.6,
        faults=tuple(faults),
        topics=topics,
        traits=_traits(draw, profile) if topics else (),
    )
    if topics and embedded:  # the broker's metadata is on one disk, and its storage node on another
        plan = replace(plan, data_directories=1, journal_apart=False)
    if profile == "busy":
        plan = replace(plan, streams=max(2, plan.streams), pending_bytes=BUSY_BYTES, durabilities=2 * plan.durabilities)
    if profile == "silent":
        return _of_long_silence(plan, draw)
    if profile == "sweep":
        return replace(plan, trims=True, ledger_bytes=4_000)  # many ledgers, which are soon deleted
    if plan.whole_broker:
        return _of_one_broker(plan, draw)
    if plan.only_metadata:
        return _of_metadata(plan, draw)
    if "tier" in plan.traits and profile == "mixed":
        plan = _with_more(plan, OBJECTS, "objects")
    return _with_more(plan, OF_CLIENTS, "clients") if topics else plan


def _of_long_silence(plan: Plan, draw: random.Random) -> Plan:
    """One node is silent most of the time. Many streams are buffered, so that power cuts leave gaps."""
    return replace(
        plan,
        seconds=3 * plan.seconds,
        durabilities=tuple(draw.choice(tuple(Durability)) for _ in plan.durabilities),
        faults=tuple(replace(fault, at=fault.at if fault.kind == "silent" else 3 * fault.at) for fault in plan.faults),
    )


def _of_one_broker(plan: Plan, draw: random.Random) -> Plan:
    """A whole broker instead of bare streams, for a shorter time. `messages` is the number of batches of each job."""
    batches = min(plan.messages, draw.choice((6, 10, 16)))
    return replace(
        plan,
        embedded=True,
        nodes=1,
        brokers=1,
        streams=0,
        copies=COPIES[0],
        data_directories=1,
        journal_apart=False,
        messages=batches,
        seconds=plan.seconds / 2,
        faults=tuple(replace(fault, at=fault.at / 2) for fault in plan.faults),
    )


def _of_metadata(plan: Plan, draw: random.Random) -> Plan:
    """Nodes that agree on metadata. `messages` is how often each client does something. A disk is lost for good only in
    plans in which no node leaves meanwhile: with both, too few voters might be left to decide anything."""
    kinds, elections = PROFILES[plan.profile], plan.profile == "elections"
    if not elections:
        without = draw.choice(("members", "wipe"))
        kinds = tuple(draw.sample([kind for kind in kinds if kind != without], draw.randint(3, len(kinds) - 4)))
    seconds = draw.uniform(6.0, 12.0)
    faults = sorted((_fault(draw, kinds, seconds) for _ in range(draw.randint(3, 12))), key=lambda fault: fault.at)
    return replace(
        plan,
        embedded=False,
        nodes=3 if elections else draw.choice((3, 3, 5)),
        brokers=0,
        streams=0,
        data_directories=1,
        journal_apart=False,
        messages=draw.choice((60, 120, 240)),
        seconds=seconds,
        faults=tuple(faults),
    )


def _with_more(plan: Plan, kinds: tuple[str, ...], name: str) -> Plan:
    """The plan with a few more faults of these kinds, drawn apart from the others."""
    draw = random.Random(f"{plan.profile}/{plan.seed}/{name}")
    more = [_fault(draw, kinds, plan.seconds) for _ in range(draw.randint(1, 4))]
    return replace(plan, faults=tuple(sorted((*plan.faults, *more), key=lambda fault: fault.at)))


def _has_topics(seed: int, profile: str) -> bool:
    """Every fourth seed of `mixed`, every second of `clock` and `busy`, and all seeds of profiles about topics."""
    shared = {"mixed": seed % 4 == 1, "clock": seed % 2 == 1, "busy": seed % 2 == 1}
    return shared.get(profile, profile in TRAITS)


def _traits(draw: random.Random, profile: str) -> tuple[str, ...]:
    traits = TRAITS[profile]
    return tuple(sorted(draw.sample(traits, draw.randint(0, len(traits))))) if profile == "mixed" else traits


def _kinds(draw: random.Random, seed: int, profile: str) -> tuple[str, ...]:
    kinds = PROFILES[profile]
    if profile != "mixed":
        return kinds
    if seed % 4 == 3:
        return ()
    return tuple(sorted(draw.sample(kinds, draw.randint(1, len(kinds)))))


def _fault(draw: random.Random, kinds: tuple[str, ...], seconds: float) -> Fault:
    return Fault(
        at=round(draw.uniform(0.05, seconds), 6),
        kind=draw.choice(kinds),
        target=draw.randrange(1 << 16),
        seconds=round(draw.choice((0.05, 0.5, 2.0)) * draw.uniform(0.2, 2.0), 6),
        amount=round(draw.random(), 6),
    )
