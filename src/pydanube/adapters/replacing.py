"""A file that is there whole or not at all: written under a name of its own, and moved when it is done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """The file to write to. It is made again, beside `path`: nothing that lies there is opened, nor a link followed."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part", delete=False) as file:
        try:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())  # as of any new file, not as of a temporary one
            os.replace(file.name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(file.name)
            raise


def _umask() -> int:
    """It can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
