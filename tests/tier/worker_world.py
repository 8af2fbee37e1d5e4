"""Object storage in a folder, opened inside a process of the cold tier, with faults that are ordered by files.

`hang-OP` makes the next calls of OP write `hanging-OP` and wait forever, before they do anything; `hang-after-OP`
after they have; `fail-OP` makes them fail.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from urllib.parse import quote, unquote

from pydanube.base.errors import ObjectExists, ObjectMissing, ObjectsFailed, ObjectsRefused


class FolderObjects:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def create(self, key: str, data: bytes) -> None:
        await self._order("create")
        try:
            with (self._folder / quote(key, safe="")).open("xb") as file:
                file.write(data)
        except FileExistsError:
            raise ObjectExists(key) from None
        await self._order("create", "after-")

    async def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        await self._order("read")
        try:
            with (self._folder / quote(key, safe="")).open("rb") as file:
                file.seek(start)
                return file.read() if length is None else file.read(length)
        except FileNotFoundError:
            raise ObjectMissing(key) from None

    async def size(self, key: str) -> int:
        return len(await self.read(key))

    async def list(self, prefix: str) -> list[str]:
        names = sorted(unquote(path.name) for path in self._folder.iterdir() if path.is_file())
        return [name for name in names if name.startswith(prefix)]

    async def delete(self, key: str) -> None:
        (self._folder / quote(key, safe="")).unlink(missing_ok=True)

    async def close(self) -> None:
        return

    async def _order(self, operation: str, when: str = "") -> None:
        orders = self._folder / "orders"
        if (orders / f"fail-{when}{operation}").exists():
            logging.getLogger("tier.world").warning("about to fail %s", operation)
            raise ObjectsFailed(f"{operation}: planted")
        if (orders / f"hang-{when}{operation}").exists():
            (orders / f"hanging-{operation}").touch()
            await asyncio.Event().wait()


def open_objects(scheme: str, options: dict[str, str], shown: str) -> FolderObjects:
    if scheme != "folder":
        raise ObjectsRefused(f"{shown}: no {scheme}")
    return FolderObjects(Path(options["root"]))


def open_slowly(scheme: str, options: dict[str, str], shown: str) -> FolderObjects:
    """As `open_objects`; ends the process at once while there is a file `die`."""
    if (Path(options["root"]) / "orders" / "die").exists():
        raise SystemExit(3)
    return open_objects(scheme, options, shown)
