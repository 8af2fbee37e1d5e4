"""Clients of one node's metadata store: they write, read, watch and hold sessions, and note what they were told."""

from __future__ import annotations

import asyncio
from random import Random

from pydanube.base.errors import (
    DanubeError,
    MetadataBusy,
    MetadataClosed,
    MetadataConflict,
    MetadataFull,
    MetadataInvalid,
    SessionExpired,
    WatchLagged,
)
from pydanube.metadata.records import Repeat
from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.loop import Process
from pydanube.sim.metadata.history import Belief, MetadataHistory
from pydanube.sim.metadata.linear import Read, Write
from pydanube.storage.metadata.raft import RaftMetadata

KEYS = [f"k{number}" for number in range(6)]
SESSION_SECONDS = 2.0
MARGIN = 0.75  # of a session, for which its owner believes in a renewal
UNCHANGED = (MetadataConflict, MetadataInvalid, MetadataFull, MetadataBusy, MetadataClosed, SessionExpired)


class Clients:
    """Those of one life of a node."""

    def __init__(
        self,
        name: str,
        store: RaftMetadata,
        history: MetadataHistory,
        random: Random,
        process: Process,
        clock: SimClock,
    ) -> None:
        self._name = name
        self._store = store
        self._history = history
        self._random = random
        self._process = process
        self._clock = clock
        self._count = 0

    async def run(self, pause: float) -> None:
        """In every second life no client writes: what waits to be made would hide a barrier that proves nothing."""
        writes = self._random.random() < 0.5
        others = [self._write(pause), self._write(pause), self._repeat(pause), self._hold()] if writes else []
        await asyncio.gather(self._read(pause), self._read(pause), self._watch(), *others)

    async def _wait(self, pause: float) -> None:
        await asyncio.sleep(pause * self._random.uniform(0.2, 1.8))

    # -- transactions --------------------------------------------------------------------------------------------------

    async def _write(self, pause: float) -> None:
        while True:
            await self._wait(pause)
            await self.transact()

    async def transact(self, repeat: Repeat | None = None) -> bool:
        """Changes some keys that it believes to know; without `repeat`, perhaps others too. Whether it was made."""
        random, store = self._random, self._store
        keys = random.sample(KEYS, random.randint(1, 3))
        found = {key: store.get(key) for key in keys}
        checks = [(key, 0 if entry is None else entry.version) for key, entry in found.items()]
        if repeat is None and random.random() < 0.2:
            checks = []
        self._count += 1
        mark = f"{self._name}.{self._count}.{'x' * random.randrange(200)}".encode()
        changes: list[tuple[str, bytes | None]] = [(key, mark) for key in keys[1:]]
        changes.append((keys[0], None if checks and random.random() < 0.1 else mark))
        changes.append((f"mark/{self._name}/{self._count % 4}", mark))
        write = Write(mark, self._history.event(), checks)
        self._history.writes.append(write)
        made = await self._made(write, changes, repeat)
        if not made:
            await self._caught_up()
        return made

    async def _made(self, write: Write, changes: list[tuple[str, bytes | None]], repeat: Repeat | None) -> bool:
        """Asks until there is an answer, if it can be asked again."""
        while True:
            try:
                write.revision = await self._store.transact(write.checks, changes, repeat=repeat)
            except UNCHANGED:
                if repeat is None:
                    write.ended = self._history.event()
                return False
            except DanubeError:
                if repeat is None:
                    return False
                await asyncio.sleep(0.1)
            else:
                write.ended = self._history.event()
                return True

    async def _caught_up(self) -> None:
        try:
            await self._store.barrier()
        except DanubeError:
            await asyncio.sleep(0.2)

    async def _repeat(self, pause: float) -> None:
        """Named transactions, whose answers are asked for again when they are lost."""
        while True:
            await self._wait(pause)
            try:
                session = await self._store.open_session(60.0)
                for number in range(1, 20):
                    await self._wait(pause)
                    await self._store.keep_alive(session)
                    await self.transact(Repeat(session, number, number - 1))
            except DanubeError:
                continue

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def _read(self, pause: float) -> None:
        while True:
            await self._wait(pause)
            await self.read()

    async def read(self) -> bool:
        """Whether there was an answer."""
        begun, store = self._history.event(), self._store
        try:
            await store.barrier()
        except DanubeError:
            return False
        found = {key: store.get(key) for key in KEYS}
        shown = {key: None if entry is None else (entry.value, entry.version) for key, entry in found.items()}
        self._history.reads.append(Read(begun, self._history.event(), store.revision, shown))
        return True

    async def _watch(self) -> None:
        """A copy of all keys, kept by a watch: whenever nothing waits, it is what the store has."""
        store, check = self._store, self._history.history.check
        while True:
            watch = store.watch("")
            copy = {key: entry.version for key, entry in store.scan("")}
            revision = store.revision
            try:
                async for change in watch:
                    check(change.revision >= revision, "I6", f"{self._name}: a watch runs backwards from {revision}")
                    revision = change.revision
                    if change.entry is None:
                        copy.pop(change.key, None)
                    else:
                        copy[change.key] = change.entry.version
                    if not watch.queue:
                        there = {key: entry.version for key, entry in store.scan("")}
                        check(copy == there, "I6", f"{self._name}: a watch has missed something up to {revision}")
            except WatchLagged:
                continue
            finally:
                watch.close()

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def _hold(self) -> None:
        """Opens a session, keeps it alive most of the time, and believes in it for three quarters of it (§39)."""
        while True:
            try:
                begun = self._clock.monotonic()
                session = await self._store.open_session(SESSION_SECONDS)
                self._believe(session, begun)
                await self._store.transact((), [(f"held/{self._name}", b"%d" % session)], session=session)
                while True:
                    await asyncio.sleep(SESSION_SECONDS * self._random.choice((0.1, 0.3, 0.3, 0.5)))
                    begun = self._clock.monotonic()
                    await self._store.keep_alive(session)
                    self._believe(session, begun)
            except DanubeError:
                await asyncio.sleep(0.3)

    def _believe(self, session: int, begun: float) -> None:
        belief = Belief(self._process, self._clock, begun + MARGIN * SESSION_SECONDS)
        self._history.believe(session, belief)
