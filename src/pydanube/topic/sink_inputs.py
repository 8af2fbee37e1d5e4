"""Where the input of a batch ends, as an engine describes it: whether two ends are equal, and whether a new query reads
again what another one has read.

Pure. Danube's own source also says where its query began. For other sources, only the ends can be compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydanube.base.limits import SINK_SOURCE_BYTES_MAX

DIGEST = "sha256:"  # replaces an end that is too long to store, and can still be compared
SHOWN_CHARACTERS = 120
NOTHING = "-"  # the end of a source that has not read anything yet
Partition = tuple[int, int]  # a topic's id, and a partition


class _Topics(NamedTuple):
    """An end of Danube's own source."""

    ends: dict[Partition, int]
    begins: dict[Partition, int] | None  # None if they are missing, as in versions before the field `began`


def bounded(source: str) -> str:
    """The end itself, or its digest if it is too long."""
    data = source.encode(errors="replace")
    if len(data) <= SINK_SOURCE_BYTES_MAX:
        return source
    return DIGEST + hashlib.sha256(data).hexdigest()


def same(one: str, other: str) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except (ValueError, RecursionError):
        return one == other


def reads_again(new: str, old: str) -> bool:
    """Whether a query that has reached `new` has read what another one had already read, up to `old`.

    False if that cannot be known.
    """
    if not new or not old:
        return False
    try:
        here, there = _items(new), _items(old)
    except (ValueError, RecursionError):
        return same(new, old)
    ours, theirs = [_topics(each) for each in here], [_topics(each) for each in there]
    if any(each is not None and each.begins is None for each in ours):
        return _no_further([_without_begins(each) for each in here], [_without_begins(each) for each in there])
    ends: dict[Partition, int] = {}
    for each in theirs:
        for partition, end in each.ends.items() if each is not None else ():
            ends[partition] = max(end, ends.get(partition, 0))
    for each in ours:
        begins = each.begins if each is not None else None
        if any(begin < ends.get(partition, 0) for partition, begin in (begins or {}).items()):
            return True
    return _no_further(
        [None if topics is not None else each for each, topics in zip(here, ours, strict=True)],
        [None if topics is not None else each for each, topics in zip(there, theirs, strict=True)],
    )


def _items(source: str) -> list[Any]:
    """The ends, one for each source of the query."""
    found = json.loads(source)
    items = found if isinstance(found, list) else [found]
    return [None if each == NOTHING else each for each in items]


def _topics(item: Any) -> _Topics | None:
    """The end of Danube's own source; None if `item` is that of another source."""
    if not isinstance(item, dict):
        return None
    ends: dict[Partition, int] = {}
    begins: dict[Partition, int] | None = {}
    for found in item.values():
        if not isinstance(found, dict) or type(found.get("id")) is not int:
            return None
        numbers = {name: end for name, end in found.items() if name not in ("id", "began")}
        if not all(_is_partition(name) and type(end) is int for name, end in numbers.items()):
            return None
        ends |= {(found["id"], int(name)): end for name, end in numbers.items()}
        began = found.get("began")
        if not isinstance(began, list) or len(began) != len(numbers) or not all(type(each) is int for each in began):
            begins = None
        elif begins is not None:
            begins |= {(found["id"], number): begin for number, begin in enumerate(began)}
    return _Topics(ends, begins)


def _is_partition(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10


def _without_begins(item: Any) -> Any:
    if _topics(item) is None:
        return item
    return {topic: {name: end for name, end in found.items() if name != "began"} for topic, found in item.items()}


def _no_further(new: Sequence[Any], old: Sequence[Any]) -> bool:
    """Whether each number in `new` is also in `old`, and at least as high there."""
    here, there = _numbers(new), _numbers(old)
    if not here or here.keys() != there.keys():
        return new == old and any(each is not None for each in new)
    return all(here[path] <= there[path] for path in here)


def _numbers(items: Sequence[Any]) -> dict[str, int]:
    """Every number in the items, by its path."""
    numbers: dict[str, int] = {}
    waiting: list[tuple[str, Any]] = [("", list(items))]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{path}/{name}", each) for name, each in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{path}/{at}", each) for at, each in enumerate(value)]
        elif isinstance(value, int):
            numbers[path] = value
    return numbers


def short(source: str) -> str:
    return source[:SHOWN_CHARACTERS] or "an unknown place"
