"""The watermark by which Spark drops late rows in the batch that is being planned, read from its checkpoint.

Spark does not show it. When a batch is planned, its offsets are already in the checkpoint, and the watermark that the
batch before recorded there is the one that stateful operators use. So a repeated batch finds the same one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydanube.base.errors import OptionInvalid
from pydanube.base.limits import MILLISECOND
from pydanube.spark.committing import LINE_BYTES_MAX, local_checkpoint

BATCHES_SEARCHED_MAX = 10  # the batch that is being planned is the newest


def late_watermark(checkpoint: str, end: Mapping[str, Any]) -> int:
    """Microseconds since 1970; 0 until there is a watermark. `end` is where the input of the batch ends."""
    path = local_checkpoint(checkpoint)
    folder = None if path is None else path / "offsets"
    try:
        numbers = sorted((int(each.name) for each in folder.iterdir() if each.name.isdecimal()), reverse=True)  # type: ignore[union-attr]
    except (AttributeError, OSError):
        raise OptionInvalid(f"watermarkOf: {checkpoint[:200]!r} has no readable checkpoint") from None
    assert folder is not None
    for number in numbers[:BATCHES_SEARCHED_MAX]:
        if any(_is(line, end) for line in _lines(folder / str(number))[2:]):
            return _watermark(folder / str(number - 1)) if number else 0
    raise OptionInvalid(f"watermarkOf: {checkpoint[:200]!r} is not the checkpoint of this query")


def _lines(file: Path) -> list[bytes]:
    with file.open("rb") as content:
        return content.read(LINE_BYTES_MAX).splitlines()


def _is(line: bytes, end: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads(line) == end)
    except ValueError:
        return False


def _watermark(file: Path) -> int:
    try:
        return int(json.loads(_lines(file)[1])["batchWatermarkMs"]) * MILLISECOND
    except (OSError, ValueError, LookupError, TypeError):
        raise OptionInvalid(f"watermarkOf: {file} cannot be read; is it from another version of Spark?") from None
