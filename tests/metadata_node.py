"""A node of metadata in a process of its own: real disk, real links. It answers commands, which are lines of JSON.

`python metadata_node.py DIRECTORY PORT [CLUSTER]` founds a cluster, or joins the one with this id.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import StreamReader, StreamReaderProtocol
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from pydanube.adapters.peer_links import PeerLinks
from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemRandomness
from pydanube.base.addresses import HostPort
from pydanube.base.errors import DanubeError
from pydanube.base.ids import NodeIdentity
from pydanube.metadata.operations import AddMember, MemberOperation, PromoteMember, RemoveMember, TransferLead
from pydanube.storage.metadata.cluster import MESSAGES
from pydanube.storage.metadata.raft import RaftMetadata
from pydanube.wire.peer.hello import Node

SECRET = b"only for tests and benchmarks"
LINE_BYTES_MAX = 1 << 20
MEMBERS: dict[str, Callable[..., MemberOperation]] = {
    "add": AddMember,
    "promote": PromoteMember,
    "remove": RemoveMember,
    "transfer": TransferLead,
}


# -- in the node's process ---------------------------------------------------------------------------------------------


class Commands:
    """Each command is a method; its answer is what that returns."""

    def __init__(self, store: RaftMetadata, port: int) -> None:
        self._store = store
        self._port = port

    async def info(self) -> dict[str, Any]:
        store = self._store
        return {
            "identity": store.identity,
            "cluster": store.cluster,
            "port": self._port,
            "leader": store.leader,
            "term": store.term,
            "leads": store.is_leader,
            "revision": store.revision,
            "chain": [store.chain.index, store.chain.chain.hex()],
            "voters": sorted(store.members.voters),
        }

    async def put(self, key: str, value: str) -> int:
        return await self._store.transact((), [(key, value.encode())])

    async def get(self, key: str) -> str | None:
        await self._store.barrier()
        entry = self._store.get(key)
        return None if entry is None else entry.value.decode()

    async def barrier(self) -> int:
        return await self._store.barrier()

    async def reach(self, revision: int) -> int:
        return await self._store.reach(revision)

    async def scan(self, prefix: str) -> dict[str, str]:
        return {key: entry.value.decode() for key, entry in self._store.scan(prefix)}

    async def member(self, verb: str, *arguments: str) -> None:
        await self._store.change_members(MEMBERS[verb](*arguments))

    async def load(self, count: int, in_flight: int, keys: int = 1000) -> float:
        """Seconds for so many transactions of 200 bytes, each of one key."""
        value, left = bytes(200), iter(range(count))

        async def writer() -> None:
            for number in left:
                await self._store.transact((), [(f"load/{number % keys}", value)])

        begun = perf_counter()
        await asyncio.gather(*(writer() for _ in range(in_flight)))
        return perf_counter() - begun


async def serve(directory: str, port: int, cluster: str) -> None:
    joins = Node(NodeIdentity("0" * 32), cluster) if cluster else None
    store = await RaftMetadata.open(PosixDisk(Path(directory)), SystemRandomness(), joins=joins)
    links = PeerLinks(store.node, SECRET, MESSAGES, store, SystemRandomness())
    address = await links.start(HostPort("127.0.0.1", port))
    store.attach(links)
    commands = Commands(store, address.port)
    reader = StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps(await commands.info()), flush=True)
    running: dict[asyncio.Task[None], None] = {}
    while line := await reader.readline():
        number, verb, arguments = json.loads(line)
        task = loop.create_task(answer(number, getattr(commands, verb)(*arguments)))
        running[task] = None
        task.add_done_callback(running.pop)
    await store.close()
    await links.stop()


async def answer(number: int, work: Awaitable[Any]) -> None:
    try:
        said: Any = [number, await work, ""]
    except DanubeError as error:
        said = [number, None, error.code]
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


# -- in the process that commands it -----------------------------------------------------------------------------------


class Refused(Exception):
    """The node answered with the code of an error, or its process has ended."""


class MetadataNode:
    """A node's process. `start` it again after `kill`: it keeps its directory and its port."""

    def __init__(self, directory: Path, cluster: str = "") -> None:
        self.directory = directory
        self.cluster = cluster
        self.port = 0
        self.identity = ""
        self.process: Process | None = None
        self._number = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        command = [sys.executable, __file__, str(self.directory), str(self.port), self.cluster]
        with (self.directory.parent / f"{self.directory.name}.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=log, limit=LINE_BYTES_MAX
            )
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, (self.directory.parent / f"{self.directory.name}.log").read_text()
        said = json.loads(line)
        self.port, self.identity = said["port"], said["identity"]
        self.cluster = self.cluster or said["cluster"]
        self._reading = asyncio.ensure_future(self._read(self.process))

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            number, result, code = json.loads(line)
            future = self._asked.pop(number)
            if not future.done():
                future.set_exception(Refused(code)) if code else future.set_result(result)
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(Refused("the process has ended"))

    async def ask(self, verb: str, *arguments: Any) -> Any:
        process = self.process
        if process is None or process.stdin is None or self._reading is None or self._reading.done():
            raise Refused("the process has ended")
        self._number += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[self._number] = future
        process.stdin.write(json.dumps([self._number, verb, arguments]).encode() + b"\n")
        return await future

    async def kill(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        if self._reading is not None:
            await self._reading

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


async def until_told(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Asks until there is an answer."""
    while True:
        try:
            return await ask()
        except Refused:
            await asyncio.sleep(0.02)


async def form(directory: Path, count: int = 3) -> list[MetadataNode]:
    """A cluster of so many voters. The first one leads."""
    first = MetadataNode(directory / "node0")
    await first.start()
    nodes = [first]
    await first.ask("member", "add", first.identity, first.address)
    for number in range(1, count):
        node = MetadataNode(directory / f"node{number}", first.cluster)
        await node.start()
        nodes.append(node)
        await first.ask("member", "add", node.identity, node.address)
        await until_told(lambda node=node: first.ask("member", "promote", node.identity))  # type: ignore[misc]
    return nodes


async def leader_of(nodes: list[MetadataNode]) -> MetadataNode:
    """The node that decides; asks until there is one."""
    while True:
        for node in nodes:
            try:
                if (await node.ask("info"))["leads"]:
                    return node
            except Refused:
                continue
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""))
