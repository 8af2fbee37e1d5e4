"""Which broker owns a topic: the record that says so, and what an owner knows of it. Pure.

One assignment covers the stream of a topic's messages and the stream of its state. Its key is the name of the first.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from pydanube.base.ids import Epoch

NOT_ASSIGNED = Epoch(0)
_STATE = "#state"


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """The broker that a topic is assigned to. The version of the record is the epoch of this owner (§40)."""

    broker: str
    session: str  # one life of the broker: what an earlier life owned has to be taken again
    opening: int = 0  # how often the topic was opened in this life before: one opening is not the owner of another


class Held(NamedTuple):
    """The condition of a change: the topic is assigned with this epoch, or to no broker."""

    topic: str
    epoch: Epoch


def state_stream(stream: str) -> str:
    """The name of the stream with the state of the topic whose messages are in `stream`."""
    return stream + _STATE


def assigned_with(stream: str) -> str:
    """The key of the assignment that covers this stream."""
    return stream.removesuffix(_STATE)
