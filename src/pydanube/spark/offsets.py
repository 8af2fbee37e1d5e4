"""The position of a query: the next offset of every partition, and the ids of the topics.

`{"/default/orders": {"id": 7, "0": 120, "1": 96, "began": [0, 0]}}` is the format in checkpoints, progress and options.
Spark compares offsets as text, so the order of keys is fixed: topics by name, then `id`, then partitions by number,
then where the query began in each. That never changes, so a sink can tell a query that starts over from one that
continues.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydanube.base.errors import OptionInvalid
from pydanube.base.limits import MIB, OFFSET_MAX, PARTITIONS_MAX

EARLIEST_MARK, LATEST_MARK = -2, -1  # as in Spark's Kafka source
OTHERS = "*"  # stands for all topics that are not named; only in options
TEXT_CHARACTERS_MAX = 16 * MIB  # of offsets given as an option


class TopicOffsets(NamedTuple):
    id: int  # never reused, so that a topic that was recreated is noticed
    next: tuple[int, ...]  # by partition; a topic without partitions has one value
    began: tuple[int, ...] | None = None  # by partition; None in checkpoints of older versions, and outside queries


Offsets = dict[str, TopicOffsets]


class GivenTopicOffsets(NamedTuple):
    """The offsets of one topic in an option: the id may be missing, and marks stand for earliest and latest."""

    id: int | None
    next: dict[int, int]
    began: tuple[int, ...] | None = None  # ignored in options
    others: int | None = None  # the mark for `OTHERS`


GivenOffsets = dict[str, GivenTopicOffsets]


def to_json(offsets: Mapping[str, TopicOffsets]) -> dict[str, dict[str, Any]]:
    return {name: _one_to_json(found) for name, found in sorted(offsets.items())}


def _one_to_json(found: TopicOffsets) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": found.id, **{str(number): offset for number, offset in enumerate(found.next)}}
    return shown if found.began is None else shown | {"began": list(found.began)}


def from_json(found: Any) -> Offsets:
    """Parses what Spark returns from its checkpoint, which may not be ours."""
    offsets: Offsets = {}
    for name, each in _given_offsets(found, "the offset in the checkpoint", str).items():
        numbers = sorted(each.next)
        if each.id is None or numbers != list(range(len(numbers))) or min(each.next.values(), default=0) < 0:
            raise OptionInvalid(f"the offset in the checkpoint does not belong to this source: {str(found)[:200]}")
        if each.began is not None and len(each.began) != len(numbers):
            raise OptionInvalid(f"the offset in the checkpoint is damaged: {str(found)[:200]}")
        offsets[name] = TopicOffsets(each.id, tuple(each.next[number] for number in numbers), each.began)
    return dict(sorted(offsets.items()))


def begun(start: Offsets) -> Offsets:
    """The offsets of a query that begins there."""
    return {name: each._replace(began=each.next) for name, each in start.items()}


def going_on(start: Offsets, end: Offsets, firsts: Mapping[str, tuple[int, ...]]) -> Offsets:
    """`end`, with the beginning of the query from `start`. New topics and partitions begin at their first offset."""
    found: Offsets = {}
    for name, each in end.items():
        known = start[name].began if name in start else ()
        if known is not None:
            new = tuple(map(min, firsts[name], each.next))[len(known) :]
            each = each._replace(began=(*known[: len(each.next)], *new))
        found[name] = each
    return found


def as_it_began(start: Offsets, end: Offsets) -> Offsets:
    """The start of the batch that ends at `end`. If the first batch is repeated, Spark asks for its start again, which
    may be different now if the query started at the latest offsets.
    """
    found = dict(start)
    for name, each in start.items():
        after = end.get(name)
        if after is None or after.began is None or each.next != each.began:
            continue
        if (each.id, each.began) != (after.id, after.began[: len(each.began)]):
            found[name] = TopicOffsets(after.id, after.began, after.began)
    return found


def start_of_query(end: Offsets) -> Offsets | None:
    """Where the query of these offsets began; None if they do not say it."""
    if any(each.began is None for each in end.values()):
        return None
    return {name: each._replace(next=each.began or ()) for name, each in end.items()}


def rows_between(start: Offsets, end: Offsets) -> int:
    """How many rows lie between two offsets; those of a partition that only `end` has are not counted."""
    found = 0
    for name, ends in end.items():
        known = start.get(name)
        if known is not None and known.id == ends.id:
            found += sum(max(0, to - at) for at, to in zip(known.next, ends.next, strict=False))
    return found


def parse_given_offsets(text: str, option: str, whole_name: Callable[[str], str]) -> GivenOffsets:
    """Parses offsets that were given as an option."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise OptionInvalid(f"{option} has {len(text)} characters; the maximum is {TEXT_CHARACTERS_MAX}")
    try:
        found = json.loads(text, object_pairs_hook=_without_duplicates)
    except _Duplicate as error:
        raise OptionInvalid(f"{option} has {error.args[0][:100]!r} twice") from None
    except (ValueError, RecursionError):
        raise OptionInvalid(f"{option} must be earliest, latest or JSON, not {text[:100]!r}") from None
    others = found.pop(OTHERS, None) if isinstance(found, dict) else None
    given = _given_offsets(found, option, whole_name)
    if others is not None:
        if type(others) is not int or others not in (EARLIEST_MARK, LATEST_MARK):
            raise OptionInvalid(
                f"{option}: {OTHERS} must be -1 (latest) or -2 (earliest), for all topics that are not named"
            )
        given[OTHERS] = GivenTopicOffsets(None, {}, others=others)
    return given


class _Duplicate(Exception):
    pass


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses duplicate names, of which JSON would silently take the last."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Duplicate(name)
        found[name] = value
    return found


def _given_offsets(found: Any, what: str, whole_name: Callable[[str], str]) -> GivenOffsets:
    if not isinstance(found, dict):
        raise OptionInvalid(f'{what} must look like {{"/default/orders": {{"0": 120}}}}, not {str(found)[:100]!r}')
    given: GivenOffsets = {}
    for name, each in sorted(found.items()):
        if (whole := whole_name(name)) in given:
            raise OptionInvalid(f"{what} has {whole[:100]!r} twice, once in its short form")
        given[whole] = _topic_offsets(name, each, what)
    return given


def _topic_offsets(topic: str, found: Any, what: str) -> GivenTopicOffsets:
    if not isinstance(found, dict):
        raise OptionInvalid(f'{what}: {topic[:100]} must have offsets by partition, as in {{"0": 120}}')
    offsets: dict[int, int] = {}
    began = found.get("began")
    if began is not None and not _are_offsets(began):
        raise OptionInvalid(f"{what}: began of {topic[:100]} must have offsets by partition, as in [120, 96]")
    for key, value in found.items():
        if key == "began":
            continue
        if type(value) is not int or not EARLIEST_MARK <= value <= OFFSET_MAX:
            raise OptionInvalid(f"{what}: {key[:20]} of {topic[:100]} must be an offset, -1 (latest) or -2 (earliest)")
        if key == "id":
            continue
        if not (key.isascii() and key.isdecimal()) or len(key) > 9 or int(key) >= PARTITIONS_MAX:
            raise OptionInvalid(f"{what}: {topic[:100]} has no partition {key[:20]!r}")
        if int(key) in offsets:
            raise OptionInvalid(f"{what}: {topic[:100]} has partition {int(key)} twice")
        offsets[int(key)] = value
    return GivenTopicOffsets(found.get("id"), offsets, None if began is None else tuple(began))


def _are_offsets(found: Any) -> bool:
    return isinstance(found, list) and all(type(each) is int and 0 <= each <= OFFSET_MAX for each in found)
