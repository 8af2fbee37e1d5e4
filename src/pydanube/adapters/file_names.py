"""Which names the files of a data directory may have. The program makes these names up, never its users."""

from __future__ import annotations

FILE_NAME_CHARACTERS_MAX = 200  # below the 255 bytes of common file systems
LOCK_NAME = "lock"  # held by the process that owns the directory; never listed, never given out


def check_file_name(name: str) -> None:
    """Raises `ValueError`, because a wrong name is a bug in the program."""
    if not name or len(name) > FILE_NAME_CHARACTERS_MAX or name in {".", "..", LOCK_NAME}:
        raise ValueError(f"not a valid file name: {name!r}")
    if "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"a file name must not contain a separator: {name!r}")
