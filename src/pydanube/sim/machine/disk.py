"""The disk port on a simulated platter, with seeded delays and every fault of a disk, which tests switch on and off.

A disk outlives the processes that use it. Each operation takes effect after its own delay, outside of any process; only
its completion reaches the process that started it, if that is still alive.
"""

from __future__ import annotations

import zlib
from asyncio import Future
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import Any

from pydanube.adapters.file_names import check_file_name
from pydanube.base.errors import DanubeError, DirectoryInUse, DiskFailed, FileMissing
from pydanube.ports.disk import DiskFile
from pydanube.sim.machine.disk_faults import DiskFaults, InjectedFault, Slowness
from pydanube.sim.machine.loop import PROCESS, Process, SimLoop
from pydanube.sim.machine.platter import SECTOR_BYTES, Inode, Keep, Platter
from pydanube.sim.machine.process import SimHandle

CHANGING = frozenset({"write", "sync", "create", "rename", "remove", "sync_directory", "make", "sync_parent"})


class _Operation:
    """An operation that was submitted and has not taken effect yet."""

    __slots__ = ("effect", "failed", "future", "handle", "interrupted", "kind", "name", "process", "values")

    def __init__(self, kind: str, name: str, process: Process | None, future: Future[Any], effect: Callable[[], Any]):
        self.kind = kind
        self.name = name
        self.process = process
        self.future = future
        self.effect = effect
        self.failed: Callable[[], None] | None = None  # the partial effect of an injected error
        self.interrupted: Callable[[bool], None] | None = None  # the effect of a kill or, if true, a power cut
        self.handle: SimHandle | None = None
        self.values: tuple[Any, ...] = ()


class SimFile:
    """An open file. Handles from before a power cut see only the files of that time."""

    __slots__ = ("_closed", "_disk", "_inode", "name")

    def __init__(self, disk: SimDisk, name: str, inode: Inode) -> None:
        self._disk = disk
        self.name = name
        self._inode = inode
        self._closed = False

    def write(self, position: int, parts: Sequence[bytes], *, sync: bool) -> Future[None]:
        self._check(position)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return self._disk._write(self.name, self._inode, position, bytes(data), sync)

    def sync(self) -> Future[None]:
        self._check()
        return self._disk._sync(self.name, self._inode)

    def read(self, position: int, length: int) -> Future[bytes]:
        self._check(position, length)
        return self._disk._submit("read", self.name, lambda: self._inode.read(position, length), position, length)

    def size(self) -> Future[int]:
        self._check()
        return self._disk._submit("size", self.name, lambda: self._inode.size)

    def close(self) -> Future[None]:
        self._closed = True
        return self._disk._submit("close", self.name, lambda: None)

    def _check(self, *numbers: int) -> None:
        if self._closed:
            raise ValueError(f"{self.name} is closed")
        if any(number < 0 for number in numbers):
            raise ValueError(f"{self.name}: positions and lengths must not be negative: {numbers}")


class SimDisk:
    """One directory. `boundaries` counts the steps that change it; with `cut_at = n` it stops after n of them."""

    def __init__(
        self,
        loop: SimLoop,
        random: Random,
        name: str,
        *,
        capacity: int | None = None,
        sector: int = SECTOR_BYTES,
        exists: bool = True,
    ) -> None:
        self.name = name
        self._exists = exists  # whether the directory was created
        self._durable = exists  # and its parent synced
        self.operations: Counter[str] = Counter()  # completed or failed, by kind
        self.boundaries = 0
        self.on_boundary: Callable[[int], None] | None = None  # called before each step with its number; may freeze it
        self.cut_at: int | None = None
        self.on_cut: Callable[[], None] | None = None  # called once when `cut_at` is reached and the disk is frozen
        self.frozen = False  # no operation completes until `power_cut`
        self._loop = loop
        self._random = random
        self._platter = Platter(sector, capacity)
        self._in_flight: dict[_Operation, None] = {}
        self._known: dict[Process, None] = {}
        self._failed: dict[Process, list[Future[Any]]] = {}
        self._holder: tuple[Process | None, str] | None = None
        self._faults = DiskFaults(random)

    # -- the port --------------------------------------------------------------------------------------------------

    def make(self) -> Future[None]:
        def make() -> None:
            self._exists = True

        return self._submit("make", "", make)

    def sync_parent(self) -> Future[None]:
        def sync() -> None:
            self._durable = self._exists

        return self._submit("sync_parent", "", sync)

    def lock(self, owner: str) -> Future[None]:
        process = PROCESS.get()

        def take() -> None:
            self._check_exists()
            if self._holder is not None and (self._holder[0] is None or self._holder[0].alive):
                raise DirectoryInUse(f"{self.name} is in use by {self._holder[1]}")
            self._holder = (process, f"{owner} ({process!r})" if process else owner)

        return self._submit("lock", "", take)

    def unlock(self) -> Future[None]:
        def release() -> None:
            self._holder = None

        return self._submit("unlock", "", release)

    def create(self, name: str, *, reserve: int = 0) -> Future[DiskFile]:
        check_file_name(name)

        def create() -> SimFile:
            self._check_exists()
            return SimFile(self, name, self._platter.create(name, reserve))

        return self._submit("create", name, create, reserve)

    def open(self, name: str) -> Future[DiskFile]:
        check_file_name(name)
        return self._submit("open", name, lambda: SimFile(self, name, self._platter.find(name)))

    def list(self) -> Future[list[str]]:
        def names() -> list[str]:
            self._check_exists()
            return sorted(self._platter.names)

        return self._submit("list", "", names)

    def rename(self, old: str, new: str) -> Future[None]:
        check_file_name(old)
        check_file_name(new)
        return self._submit("rename", old, lambda: self._platter.rename(old, new), new)

    def remove(self, name: str) -> Future[None]:
        check_file_name(name)
        return self._submit("remove", name, lambda: self._platter.remove(name))

    def sync_directory(self) -> Future[None]:
        mark = self._platter.directory_mark()
        return self._submit("sync_directory", "", lambda: self._platter.sync_directory(mark))

    def free_bytes(self) -> Future[int]:
        return self._submit("free_bytes", "", self._platter.free_bytes)

    def _check_exists(self) -> None:
        if not self._exists:
            raise FileMissing(f"{self.name}: no such directory")

    def _write(self, name: str, inode: Inode, position: int, data: bytes, sync: bool) -> Future[None]:
        platter, random = self._platter, self._random

        def failed() -> None:
            platter.put(inode, position, data[: random.randrange(len(data) + 1)])

        def interrupted(power: bool) -> None:
            if power or random.random() < 0.4:  # a power cut decides for each sector anyway
                platter.put(inode, position, data)
            elif random.random() < 0.5:
                failed()

        def effect() -> None:
            platter.write(name, inode, position, data)

        def effect_and_sync() -> Future[None]:
            effect()
            return self._sync(name, inode, operation)

        operation = self._operation("write", name, effect_and_sync if sync else effect)
        operation.values = (position, len(data), zlib.crc32(data))
        operation.failed = failed
        operation.interrupted = interrupted
        return self._start(operation)

    def _sync(self, name: str, inode: Inode, written: _Operation | None = None) -> Future[None]:
        """Syncs a file, alone or as the second step of a write, whose future it then completes."""
        covered, size = inode.covered(), inode.size
        operation = self._operation("sync", name, lambda: inode.sync(covered, size), written)
        operation.values = (len(covered),)
        operation.failed = lambda: inode.fail_sync(covered)
        return self._start(operation)

    # -- operations ------------------------------------------------------------------------------------------------

    def _submit(self, kind: str, name: str, effect: Callable[[], Any], *values: object) -> Future[Any]:
        operation = self._operation(kind, name, effect)
        operation.values = values
        return self._start(operation)

    def _operation(
        self, kind: str, name: str, effect: Callable[[], Any], first: _Operation | None = None
    ) -> _Operation:
        """A new operation, or the next step of `first`."""
        if first is not None:
            return _Operation(kind, name, first.process, first.future, effect)
        return _Operation(kind, name, PROCESS.get(), self._loop.create_future(), effect)

    def _start(self, operation: _Operation) -> Future[Any]:
        process = operation.process
        if process is not None:
            if not process.alive:
                return operation.future  # a dead process cannot start anything
            if process not in self._known:
                self._known[process] = None
                process.on_kill.append(self._process_killed)
        self._in_flight[operation] = None
        if not self.frozen:
            loop = self._loop
            delay = self._faults.delay(operation.kind, loop.time())
            operation.handle = loop.call_later(delay, self._finish, operation, context=loop.world)
        return operation.future

    def _finish(self, operation: _Operation) -> None:
        kind, name = operation.kind, operation.name
        if self.frozen or (kind in CHANGING and not self._step()):
            return  # stays in flight: the power cut decides what happens to it
        del self._in_flight[operation]
        self.operations[kind] += 1
        result: Any = None
        error: DanubeError | None = self._faults.injected(kind, name)
        if error is not None:
            if operation.failed is not None:
                operation.failed()
        else:
            try:
                result = operation.effect()
            except DanubeError as raised:
                error = raised
        self._loop.trace(f"disk.{kind}", self.name, name, *operation.values, error.code if error else "")
        future = operation.future
        if result is future or future.done() or (operation.process is not None and not operation.process.alive):
            return  # continues with its second step, or no one waits for it
        if error is not None:
            future.set_exception(error)
            if operation.process is not None:
                self._failed.setdefault(operation.process, []).append(future)
        else:
            future.set_result(result)

    def _step(self) -> bool:
        """Counts a change that is about to happen; False if the power is cut before it."""
        if self.cut_at == self.boundaries:
            self.cut_at = None
            self.freeze()
            if self.on_cut is not None:
                self.on_cut()
            return False
        if self.on_boundary is not None:
            self.on_boundary(self.boundaries)
            if self.frozen:
                return False
        self.boundaries += 1
        return True

    # -- crashes ---------------------------------------------------------------------------------------------------

    def _process_killed(self, process: Process) -> None:
        """Lets each operation in flight happen now, partly or never. The operating system is alive; nothing follows."""
        self._known.pop(process, None)
        for future in self._failed.pop(process, []):
            future.exception()  # marks it as seen: the process that would have looked at it is dead
        if self.frozen:
            return  # the power was cut first
        for operation in [operation for operation in self._in_flight if operation.process is process]:
            del self._in_flight[operation]
            if operation.handle is not None:
                operation.handle.cancel()
            if operation.kind in CHANGING:
                self.boundaries += 1
                self._interrupt(operation, power=False)

    def _interrupt(self, operation: _Operation, *, power: bool) -> None:
        if operation.interrupted is not None:
            operation.interrupted(power)
        elif self._random.random() < 0.5:
            try:
                operation.effect()
            except DanubeError:
                return

    def freeze(self) -> None:
        """Lets nothing complete until `power_cut`."""
        self.frozen = True

    def power_cut(self, *, keep: Keep | None = None, keep_directory: int | None = None) -> None:
        """Loses, keeps or tears each unsynced write, and restores the power. Kill the processes at the same moment.

        `keep(write, sector)` decides about one sector of one unsynced write. Both are counted from 0, oldest first and
        those in flight last (`unsynced` lists them). `keep_directory` is how many unsynced changes of the directory
        survive. Without them the seed decides, as it does about a new directory whose parent was not synced.
        """
        draw = self._random.random
        for operation in list(self._in_flight):
            if operation.handle is not None:
                operation.handle.cancel()
            if operation.kind == "write" or (operation.kind in {"create", "rename", "remove"} and keep is None):
                self._interrupt(operation, power=True)
        self._in_flight.clear()
        changes = self._platter.unsynced_directory()
        if keep_directory is None:
            keep_directory = self._random.randrange(changes + 1)
        if keep is None:
            self._platter.power_cut(self._seeded_keep(), keep_directory, lambda: draw() < 0.5)
        else:
            self._platter.power_cut(keep, keep_directory, lambda: False)
        if self._exists and not self._durable and draw() < 0.5:
            self._exists = False
            self._platter = Platter(self._platter.sector, self._platter.capacity)
        self._durable = self._exists
        self.frozen = False
        self._holder = None
        self._loop.trace("disk.power_cut", self.name, sorted(self._platter.names))

    def _seeded_keep(self) -> Keep:
        """Each write is lost, kept or torn, with its own probability."""
        draw = self._random.random
        fates: dict[int, float] = {}

        def keep(write: int, sector: int) -> bool:
            fate = fates.get(write)
            if fate is None:
                fate = fates[write] = min(1.0, max(0.0, draw() * 3 - 1))
            return draw() < fate

        return keep

    def unsynced(self) -> Sequence[tuple[str, int, int]]:
        """The writes that a power cut may lose, in the order of `keep`: name of the file, position, length."""
        in_flight = [operation for operation in self._in_flight if operation.kind == "write"]
        return [
            *((name, write.position, len(write.data)) for name, write in self._platter.unsynced()),
            *((operation.name, operation.values[0], operation.values[1]) for operation in in_flight),
        ]

    # -- faults ----------------------------------------------------------------------------------------------------

    def fail_next(
        self, kind: str, error: type[DanubeError] = DiskFailed, *, count: int = 1, after: int = 0, prefix: str = ""
    ) -> None:
        """Makes the next `count` operations of the kind fail, after `after` that succeed, on files with the prefix."""
        self._faults.fail_next(InjectedFault(kind, error, prefix, after, count))

    def slow(self, seconds: float = 0.0, *, factor: float = 1.0, until: float = inf, only: str = "") -> None:
        """Slows down all operations, or only those of one kind, until a time."""
        self._faults.slow(Slowness(seconds, factor, until, only))

    def cure(self) -> None:
        """Ends slowness and injected errors. Damaged files stay damaged."""
        self._faults = DiskFaults(self._random)

    @property
    def capacity(self) -> int | None:
        return self._platter.capacity

    @capacity.setter
    def capacity(self, capacity: int | None) -> None:
        self._platter.capacity = capacity

    def share(self, other: SimDisk) -> None:
        """Makes both disks directories of one file system, which share its capacity, until the next power cut."""
        self._platter.sharing, other._platter.sharing = [other._platter], [self._platter]
        other.capacity = self.capacity

    @property
    def used_bytes(self) -> int:
        return self._platter.used()

    def flip_bit(self, name: str, position: int, bit: int) -> None:
        (byte,) = self._platter.find(name).read(position, 1)
        self.overwrite(name, position, bytes([byte ^ (1 << bit)]))

    def overwrite(self, name: str, position: int, data: bytes) -> None:
        """Replaces durable bytes, as a misdirected write would."""
        self._platter.overwrite(name, position, data)

    def zero_range(self, name: str, position: int, length: int) -> None:
        """Erases bytes, as if an acknowledged write had never reached the platter."""
        self._platter.overwrite(name, position, bytes(length))

    def truncate(self, name: str, length: int) -> None:
        self._platter.truncate(name, length)

    # -- inspection ------------------------------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._platter.names))

    def content(self, name: str) -> bytes:
        inode = self._platter.find(name)
        return inode.read(0, inode.size)

    def image(self) -> dict[str, tuple[int, bytes]]:
        """Every file as its size and its bytes up to the last one written. `load` restores it."""
        return self._platter.image()

    def load(self, image: dict[str, tuple[int, bytes]]) -> None:
        self._platter.load(image)
