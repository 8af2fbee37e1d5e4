"""Writes a file that appears completely or not at all: it gets its name once it is complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file to write to, in the folder of `path`. Neither opens what exists at `path` nor follows a link there."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part", delete=False) as file:
        try:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())  # the mode of an ordinary new file, not of a temporary one
            os.replace(file.name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(file.name)
            raise


def _umask() -> int:
    """The umask, which can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
