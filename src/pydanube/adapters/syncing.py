"""Durability of paths: the one place that knows how a file or a folder is brought to the disk by its name."""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: str | Path) -> None:
    """The bytes of a file, or the names in a folder, are on the disk when it returns. It blocks."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
