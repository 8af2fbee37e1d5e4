"""Where a query stands: the next offset of every partition, and the ids of the topics these are offsets of.

One grammar for checkpoints, progress and options: `{"/default/orders": {"id": 7, "0": 120, "1": 96}}`. Spark compares
offsets as text, so there is one order of keys: topics by name, then `id`, then partitions by number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydanube.base.errors import OptionInvalid
from pydanube.base.limits import OFFSET_MAX, PARTITIONS_MAX

EARLIEST_MARK, LATEST_MARK = -2, -1  # as in Spark's Kafka source
TEXT_CHARACTERS_MAX = 16 * 1024 * 1024  # of offsets given as an option


class TopicOffsets(NamedTuple):
    id: int  # never used again, so that a topic made anew is noticed
    next: tuple[int, ...]  # by partition; a topic without partitions has one here


Offsets = dict[str, TopicOffsets]


class Wish(NamedTuple):
    """What somebody wrote about one topic: perhaps without the id, perhaps with marks for earliest and latest."""

    id: int | None
    next: dict[int, int]


Wishes = dict[str, Wish]


def to_json(offsets: Mapping[str, TopicOffsets]) -> dict[str, dict[str, int]]:
    return {
        name: {"id": found.id, **{str(number): offset for number, offset in enumerate(found.next)}}
        for name, found in sorted(offsets.items())
    }


def from_json(found: Any) -> Offsets:
    """What Spark gives back to us: its checkpoint may be somebody else's."""
    offsets: Offsets = {}
    for name, wish in _wishes(found, "the offset in the checkpoint", str).items():
        numbers = sorted(wish.next)
        if wish.id is None or numbers != list(range(len(numbers))) or min(wish.next.values(), default=0) < 0:
            raise OptionInvalid(f"the offset in the checkpoint is not of this source: {str(found)[:200]}")
        offsets[name] = TopicOffsets(wish.id, tuple(wish.next[number] for number in numbers))
    return dict(sorted(offsets.items()))


def parse_wishes(text: str, option: str, whole_name: Callable[[str], str]) -> Wishes:
    """Offsets as somebody wrote them."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise OptionInvalid(f"{option} has {len(text)} characters, at most {TEXT_CHARACTERS_MAX}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise OptionInvalid(f"{option} is earliest, latest or JSON, not {text[:100]!r}") from None
    return _wishes(found, option, whole_name)


def _wishes(found: Any, what: str, whole_name: Callable[[str], str]) -> Wishes:
    if not isinstance(found, dict):
        raise OptionInvalid(f'{what} is like {{"/default/orders": {{"0": 120}}}}, not {str(found)[:100]!r}')
    return {whole_name(name): _wish(name, wish, what) for name, wish in sorted(found.items())}


def _wish(topic: str, found: Any, what: str) -> Wish:
    if not isinstance(found, dict):
        raise OptionInvalid(f'{what}: {topic[:100]} has offsets by partition, as in {{"0": 120}}')
    offsets: dict[int, int] = {}
    for key, value in found.items():
        if type(value) is not int or not EARLIEST_MARK <= value <= OFFSET_MAX:
            raise OptionInvalid(f"{what}: {key[:20]} of {topic[:100]} is an offset, -1 (latest) or -2 (earliest)")
        if key == "id":
            continue
        if not (key.isascii() and key.isdecimal()) or len(key) > 9 or int(key) >= PARTITIONS_MAX:
            raise OptionInvalid(f"{what}: {topic[:100]} has no partition {key[:20]!r}")
        offsets[int(key)] = value
    return Wish(found.get("id"), offsets)
