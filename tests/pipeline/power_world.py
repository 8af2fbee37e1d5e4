"""A disk that forgets what was not synced: folders as a power cut would leave them, at every moment that matters."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import pytest

Identity = tuple[int, int]  # device and inode


@dataclass
class Disk:
    """Watches what this process syncs below `root`. SQLite syncs by itself: its files are left as they are.

    A power cut empties each file that was not synced since it was written. Folders are as they are (`torn`), or as they
    were when they were last synced, with what was moved or deleted since (`lost`). Both happen; which, is up to the
    file system.
    """

    root: Path
    copies: Path
    cuts: list[Path] = field(default_factory=list)  # taken at each sync
    watching: bool = False
    _one: Lock = field(default_factory=Lock)
    _content: dict[Identity, bytes] = field(default_factory=dict)
    _names: dict[Identity, dict[str, Identity]] = field(default_factory=dict)
    _held: list[int] = field(default_factory=list)  # so that no other file gets the identity of a deleted one

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fsync, fdatasync = os.fsync, os.fdatasync

        def synced(handle: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            if not path.is_relative_to(self.root):
                return fsync(handle)
            with self._one:  # some libraries write in several threads
                if self.watching:
                    self.cut()  # just before it
                if path.is_dir():
                    self._names[_identity(path)] = {each.name: _identity(each) for each in path.iterdir()}
                else:
                    self._content[_identity(path)] = path.read_bytes()
                    self._held.append(os.dup(handle))
                return fdatasync(handle)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "fdatasync", synced)

    def cut(self) -> None:
        for kind in ("torn", "lost"):
            copy = self.copies / f"{len(self.cuts):04d}-{kind}"
            self._copy(self.root, copy, lost=kind == "lost")
            self.cuts.append(copy)

    def _copy(self, source: Path, target: Path, *, lost: bool) -> None:
        target.mkdir(parents=True)
        synced = self._names.get(_identity(source), {})
        for name, identity in synced.items() if lost else ():
            if not (source / name).exists() and identity in self._content:
                (target / name).write_bytes(self._content[identity])
        for each in source.iterdir():
            is_catalog = ".db" in each.name
            if lost and not is_catalog and each.name not in synced:
                continue
            if each.is_dir():
                self._copy(each, target / each.name, lost=lost)
            else:
                content = each.read_bytes()
                whole = is_catalog or self._content.get(_identity(each)) == content
                (target / each.name).write_bytes(content if whole else b"")

    @contextmanager
    def during(self) -> Iterator[list[Path]]:
        """What the power could have left at each sync within, and after the last one."""
        shutil.rmtree(self.copies, ignore_errors=True)
        self.cuts, self.watching = [], True
        try:
            yield self.cuts
            self.cut()
        finally:
            self.watching = False

    def close(self) -> None:
        for handle in self._held:
            os.close(handle)

    @contextmanager
    def after(self, cut: Path) -> Iterator[None]:
        """The machine is up again, with what is left; and then as if nothing had happened."""
        aside = self.root.with_name(f"{self.root.name}-aside")
        os.rename(self.root, aside)
        shutil.copytree(cut, self.root)
        try:
            yield
        finally:
            shutil.rmtree(self.root)
            os.rename(aside, self.root)


def _identity(path: Path) -> Identity:
    found = path.stat()
    return found.st_dev, found.st_ino
