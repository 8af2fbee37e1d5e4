"""The content of a simulated disk: durable bytes, the cache above them, and the writes that are in the cache only.

Pure state without time: `SimDisk` decides when a step happens, and the caller of `power_cut` what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pydanube.base.errors import DiskFailed, DiskFull, FileMissing

SECTOR_BYTES = 512  # a disk writes a sector wholly or not at all
NO_LIMIT_BYTES = 1 << 50  # free space of a disk without a limit

Keep = Callable[[int, int], bool]  # (unsynced write, sector of it) -> whether it survives


@dataclass(eq=False, slots=True)
class Write:
    """A write to the cache that no sync has covered. In `limbo`, a sync has failed on it, so no later one covers it."""

    number: int
    position: int
    data: bytes
    limbo: bool = False
    durable: bool = False

    def without(self, later: Write) -> list[Write]:
        """What is left of this write when a later one is durable, which it can never overwrite."""
        start, end = self.position, self.position + len(self.data)
        cut_start, cut_end = max(start, later.position), min(end, later.position + len(later.data))
        if not self.limbo or self.number > later.number or cut_start >= cut_end:
            return [self]
        pieces = ((start, cut_start), (cut_end, end))
        return [Write(self.number, a, self.data[a - start : b - start], limbo=True) for a, b in pieces if a < b]

    def sectors(self, sector: int) -> Iterator[tuple[int, int]]:
        """The write divided into sectors of the disk, as ranges of `data`."""
        start = 0
        while start < len(self.data):
            end = min(len(self.data), start + sector - (self.position + start) % sector)
            yield start, end
            start = end


@dataclass(eq=False, slots=True)
class Inode:
    """One file. Its bytes end with the last one written; from there to its size it reads as zeros."""

    size: int = 0
    reserved: int = 0
    cache: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    durable_size: int = 0
    unsynced: list[Write] = field(default_factory=list)

    def read(self, position: int, length: int) -> bytes:
        end = min(position + length, self.size)
        if end <= position:
            return b""
        with memoryview(self.cache) as view:
            found = bytes(view[position:end])
        return found if len(found) == end - position else found.ljust(end - position, b"\0")

    def write(self, write: Write) -> None:
        put(self.cache, write.position, write.data)
        self.size = max(self.size, write.position + len(write.data))
        self.unsynced.append(write)

    def covered(self) -> list[Write]:
        """The writes that a sync which starts now will make durable."""
        return list(self.unsynced)

    def sync(self, covered: list[Write], size: int) -> None:
        for write in covered:
            if not write.limbo and not write.durable:  # another sync may have done or failed it since
                put(self.durable, write.position, write.data)
                write.durable = True
                self.unsynced = [left for other in self.unsynced for left in other.without(write)]
        self.unsynced = [write for write in self.unsynced if not write.durable]
        self.durable_size = max(self.durable_size, min(size, self.size))

    def fail_sync(self, covered: list[Write]) -> None:
        for write in covered:
            write.limbo = True

    def used(self) -> int:
        return max(self.size, self.reserved)


def put(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


@dataclass(frozen=True, slots=True)
class DirectoryChange:
    """A change of the directory: `old` is empty for a creation, `new` for a removal."""

    old: str
    new: str
    inode: Inode


class Platter:
    """Files and their directory, each with a durable and a cached state."""

    def __init__(self, sector: int, capacity: int | None) -> None:
        self.sector = sector
        self.capacity = capacity
        self.sharing: list[Platter] = []  # other directories that share the capacity of the file system
        self.names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._changes: list[DirectoryChange] = []  # not durable yet, in order
        self._changes_before = 0  # how many changes are durable
        self._write_count = 0

    # -- files -----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Inode:
        inode = self.names.get(name)
        if inode is None:
            raise FileMissing(f"{name}: no such file")
        return inode

    def write(self, name: str, inode: Inode, position: int, data: bytes) -> None:
        """Writes into the cache. If the disk is full, writes what fits and raises `DiskFull`."""
        grows = position + len(data) - inode.used()
        if self.capacity is not None and grows > 0 and grows > self.free_bytes():
            fits = max(0, len(data) - (grows - max(0, self.free_bytes())))
            self.put(inode, position, data[:fits])
            raise DiskFull(f"write {name}: no space left on the simulated disk")
        self.put(inode, position, data)

    def put(self, inode: Inode, position: int, data: bytes) -> None:
        if data:
            self._write_count += 1
            inode.write(Write(self._write_count, position, data))

    def free_bytes(self) -> int:
        if self.capacity is None:
            return NO_LIMIT_BYTES
        return max(0, self.capacity - sum(platter.used() for platter in (self, *self.sharing)))

    def used(self) -> int:
        return sum(inode.used() for inode in self.names.values())

    # -- directory -------------------------------------------------------------------------------------------------

    def create(self, name: str, reserve: int) -> Inode:
        if name in self.names:
            raise DiskFailed(f"create {name}: the file exists")
        if reserve > self.free_bytes():
            raise DiskFull(f"create {name}: no room for {reserve} bytes on the simulated disk")
        inode = Inode(size=reserve, reserved=reserve)
        self._change(DirectoryChange("", name, inode))
        return inode

    def rename(self, old: str, new: str) -> None:
        self._change(DirectoryChange(old, new, self.find(old)))

    def remove(self, name: str) -> None:
        self._change(DirectoryChange(name, "", self.find(name)))

    def directory_mark(self) -> int:
        """Marks the changes that a directory sync which starts now will make durable."""
        return self._changes_before + len(self._changes)

    def sync_directory(self, mark: int) -> None:
        count = max(0, mark - self._changes_before)
        for change in self._changes[:count]:
            _apply(self._durable_names, change)
        del self._changes[:count]
        self._changes_before += count

    def unsynced_directory(self) -> int:
        return len(self._changes)

    def _change(self, change: DirectoryChange) -> None:
        _apply(self.names, change)
        self._changes.append(change)

    # -- power -----------------------------------------------------------------------------------------------------

    def unsynced(self) -> list[tuple[str, Write]]:
        """Every write that a power cut may lose, oldest first, with the name of its file ("" if it was removed)."""
        names = {inode: name for name, inode in self.names.items()}
        changed = (change.inode for change in self._changes)
        inodes = dict.fromkeys([*self.names.values(), *self._durable_names.values(), *changed])
        found = [(names.get(inode, ""), write) for inode in inodes for write in inode.unsynced]
        return sorted(found, key=lambda item: item[1].number)

    def power_cut(self, keep: Keep, keep_changes: int, keep_size: Callable[[], bool]) -> None:
        """Loses what is not durable, except for the sectors, directory changes and sizes that the caller keeps."""
        order = {write: index for index, (_, write) in enumerate(self.unsynced())}
        self.sync_directory(self._changes_before + keep_changes)
        self._changes_before += len(self._changes)
        self._changes.clear()
        self.names = {}
        fresh: dict[Inode, Inode] = {}  # open files keep the old ones
        for name in sorted(self._durable_names):
            inode = self._durable_names[name]
            if inode not in fresh:
                fresh[inode] = self._survivor(inode, order, keep, keep_size)
            self.names[name] = fresh[inode]
        self._durable_names = dict(self.names)

    def _survivor(self, inode: Inode, order: dict[Write, int], keep: Keep, keep_size: Callable[[], bool]) -> Inode:
        size = inode.durable_size
        for write in inode.unsynced:
            for index, (start, end) in enumerate(write.sectors(self.sector)):
                if keep(order[write], index):
                    put(inode.durable, write.position + start, write.data[start:end])
                    size = max(size, write.position + end)
        if size < inode.size and keep_size():
            size = inode.size
        return Inode(
            size=size,
            reserved=min(inode.reserved, size),
            cache=bytearray(inode.durable),
            durable=inode.durable,
            durable_size=size,
        )

    # -- damage and images -----------------------------------------------------------------------------------------

    def overwrite(self, name: str, position: int, data: bytes) -> None:
        """Changes bytes silently: in the cache, on the platter and in unsynced writes."""
        inode = self.find(name)
        data = data[: max(0, inode.size - position)]
        end = position + len(data)
        put(inode.cache, position, data)
        put(inode.durable, position, data[: max(0, inode.durable_size - position)])
        for write in inode.unsynced:
            first, last = max(position, write.position), min(end, write.position + len(write.data))
            if first < last:
                changed = bytearray(write.data)
                changed[first - write.position : last - write.position] = data[first - position : last - position]
                write.data = bytes(changed)

    def truncate(self, name: str, length: int) -> None:
        inode = self.find(name)
        inode.size = min(inode.size, length)
        inode.durable_size = min(inode.durable_size, length)
        inode.reserved = min(inode.reserved, length)
        del inode.cache[length:]
        del inode.durable[length:]
        for write in inode.unsynced:
            write.data = write.data[: max(0, length - write.position)]

    def image(self) -> dict[str, tuple[int, bytes]]:
        """Every file as its size and its bytes up to the last one written."""
        return {name: (inode.size, bytes(inode.cache)) for name, inode in sorted(self.names.items())}

    def load(self, image: dict[str, tuple[int, bytes]]) -> None:
        """Replaces the content by an image, all of it durable."""
        self._changes_before += len(self._changes)
        self._changes.clear()
        self.names = {
            name: Inode(
                size=size,
                reserved=size,
                cache=bytearray(data),
                durable=bytearray(data),
                durable_size=max(size, len(data)),
            )
            for name, (size, data) in image.items()
        }
        self._durable_names = dict(self.names)


def _apply(names: dict[str, Inode], change: DirectoryChange) -> None:
    if change.old:
        names.pop(change.old, None)
    if change.new:
        names[change.new] = change.inode
