"""Decodes the messages of a batch: on the loop if that is quick, otherwise off the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydanube.base.limits import DECODED_ATTRIBUTES_BYTES, DECODED_BYTES, DECODED_MESSAGES
from pydanube.ports.offload import Offload
from pydanube.wire.batch import Batch

Result = TypeVar("Result")


def takes_long_to_decode(batch: Batch) -> bool:
    """Judges only by the header: a few hundred bytes may decompress to 16 MiB."""
    return (
        batch.count > DECODED_MESSAGES
        or batch.unpacked_bytes > DECODED_BYTES
        or batch.attributes_bytes > DECODED_ATTRIBUTES_BYTES
    )


async def run_decoding(offload: Offload, function: Callable[..., Result], batch: Batch, *arguments: object) -> Result:
    """Returns what the function returns for the batch."""
    if takes_long_to_decode(batch):
        return await offload.run(function, batch, *arguments)
    return function(batch, *arguments)
