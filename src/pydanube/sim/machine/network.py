"""The network port between simulated processes: messages are late, lost, duplicated and reordered, and links are cut.

A message reaches whichever life of the receiver listens when it arrives, so an old message may meet a new epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations
from random import Random

from pydanube.sim.machine.loop import Process, SimLoop
from pydanube.wire.peer.frames import FrameDecoder, divide, encode_frame
from pydanube.wire.peer.messages import Encoded, MessageTable


@dataclass(frozen=True, slots=True)
class Link:
    """How one direction between two processes behaves. Probabilities are per message."""

    delay_min: float = 0.0001
    delay_max: float = 0.002
    loss: float = 0.0
    duplication: float = 0.0
    late: float = 0.0  # the probability of a delay of up to `late_max`
    late_max: float = 60.0


class SimEndpoint:
    """The network as one life of a process sees it."""

    def __init__(self, network: SimNetwork, name: str, process: Process) -> None:
        self._network = network
        self.name = name
        self.process = process
        self.receive: Callable[[str, object], None] | None = None

    def send(self, to: str, message: object) -> None:
        if self.process.alive:
            self._network._send(self.name, to, message)

    def listen(self, receive: Callable[[str, object], None]) -> None:
        self.receive = receive


class SimNetwork:
    """All links. `link` applies to every pair that has no link of its own."""

    def __init__(
        self, loop: SimLoop, random: Random, link: Link | None = None, table: MessageTable | None = None
    ) -> None:
        """With a table, messages are frames of the peer protocol on their way; otherwise any value is a message."""
        self.link = link or Link()
        self._table = table
        self.counters: Counter[str] = Counter()  # sent, delivered, lost, cut, duplicated, late, unheard
        self._loop = loop
        self._random = random
        self._links: dict[tuple[str, str], Link] = {}
        self._endpoints: dict[str, SimEndpoint] = {}
        self._cuts: set[tuple[str, str]] = set()  # from, to
        self._isolated: set[str] = set()

    def endpoint(self, name: str, process: Process) -> SimEndpoint:
        """A new endpoint for a process, which replaces the one of its previous life."""
        endpoint = SimEndpoint(self, name, process)
        self._endpoints[name] = endpoint
        return endpoint

    # -- settings and partitions -----------------------------------------------------------------------------------

    def set_link(self, sender: str, receiver: str, link: Link | None) -> None:
        """Gives one direction its own link, or removes it."""
        if link is None:
            self._links.pop((sender, receiver), None)
        else:
            self._links[sender, receiver] = link

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Blocks messages from `a` to `b`, and back unless `one_way`. Messages in transit are lost too."""
        self._cuts.add((a, b))
        if not one_way:
            self._cuts.add((b, a))
        self._loop.trace("net.cut", a, b, one_way)

    def isolate(self, name: str) -> None:
        """Blocks all messages to and from a process, also with peers that start later."""
        self._isolated.add(name)
        self._loop.trace("net.isolate", name)

    def partition(self, groups: Sequence[Iterable[str]]) -> None:
        """Blocks messages between processes that share no group. A process in two groups can reach both."""
        members = [tuple(group) for group in groups]
        for a, b in combinations(sorted({name for group in members for name in group}), 2):
            if not any(a in group and b in group for group in members):
                self.cut(a, b)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """Ends all cuts, or those of one process, or those between two processes."""
        wanted = {name for name in (a, b) if name is not None}
        self._cuts = {pair for pair in self._cuts if not wanted <= set(pair)}
        self._isolated -= wanted or self._isolated
        self._loop.trace("net.heal", a, b)

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._cuts or (
            sender != receiver and (sender in self._isolated or receiver in self._isolated)
        )

    # -- messages --------------------------------------------------------------------------------------------------

    def _send(self, sender: str, receiver: str, message: object) -> None:
        counters, draw = self.counters, self._random.random
        if self._table is not None:
            message = _framed(self._table.encode(message), _target(receiver))
        counters["sent"] += 1
        if (self._cuts or self._isolated) and self.is_cut(sender, receiver):
            counters["cut"] += 1
            return
        link = self._links.get((sender, receiver), self.link) if self._links else self.link
        if link.loss and draw() < link.loss:
            counters["lost"] += 1
            return
        copies = 1
        if link.duplication and draw() < link.duplication:
            counters["duplicated"] += 1
            copies = 2
        for _ in range(copies):
            delay = link.delay_min + (link.delay_max - link.delay_min) * draw()
            if link.late and draw() < link.late:
                counters["late"] += 1
                delay += link.late_max * draw()
            loop, number = self._loop, counters["sent"]
            loop.call_later(delay, self._deliver, sender, receiver, number, message, context=loop.world)

    def _deliver(self, sender: str, receiver: str, number: int, message: object) -> None:
        if (self._cuts or self._isolated) and self.is_cut(sender, receiver):
            self.counters["cut"] += 1
            return
        endpoint = self._endpoints.get(receiver)
        if endpoint is None or endpoint.receive is None or not endpoint.process.alive:
            self.counters["unheard"] += 1
            return
        self.counters["delivered"] += 1
        if self._table is not None:
            assert isinstance(message, bytes)
            message = _unframed(message, _target(receiver), self._table)
        self._loop.trace("net", sender, receiver, number, type(message).__name__)
        self._loop.run_in(endpoint.process, endpoint.receive, sender, message)


def _target(name: str) -> bytes:
    """Stands for the identity of the process, which frames name."""
    return blake2b(name.encode(), digest_size=16).digest()


def _framed(message: Encoded, target: bytes) -> bytes:
    """All frames of a message. They are lost together: a link that ends drops what is incomplete."""
    parts = divide(message.parts)
    return b"".join(encode_frame(message.kind, message.request, target, body, flags) for flags, body in parts)


def _unframed(data: bytes, target: bytes, table: MessageTable) -> object:
    decoder = FrameDecoder(target, preface=False)
    decoder.open(table.bounds)
    [frame] = decoder.feed(data)
    return table.decode(frame)
