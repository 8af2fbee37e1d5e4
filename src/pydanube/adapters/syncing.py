"""Durability of paths: the one place that knows how to sync a file or a folder by its name."""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: str | Path) -> None:
    """Syncs the bytes of a file, or the names in a folder. It blocks."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
