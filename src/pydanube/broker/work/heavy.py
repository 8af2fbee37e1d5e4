"""Batches that take long to unpack or to take apart. Whoever needs their messages gets them beside the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydanube.base.limits import DECODED_ATTRIBUTES_BYTES, DECODED_BYTES, DECODED_MESSAGES
from pydanube.ports.offload import Offload
from pydanube.wire.batch import Batch

Result = TypeVar("Result")


def is_heavy(batch: Batch) -> bool:
    """Without unpacking anything: a few hundred bytes may become 16 MiB."""
    return (
        batch.count > DECODED_MESSAGES
        or batch.unpacked_bytes > DECODED_BYTES
        or batch.attributes_bytes > DECODED_ATTRIBUTES_BYTES
    )


async def taken_apart(
    offload: Offload,
    function: Callable[..., Result],
    batch: Batch,
    *arguments: object,
) -> Result:
    """What the function makes of the batch: at once if that is quick, else beside the loop."""
    if is_heavy(batch):
        return await offload.run(function, batch, *arguments)
    return function(batch, *arguments)
