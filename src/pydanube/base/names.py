"""Names of namespaces, topics and pipelines: what is valid. A name is looked up; it never becomes a path.

`/namespace/name` is a topic, `/namespace/name-part-3` one of its partitions. Only ASCII letters, digits, `_`, `-` and
`.` are allowed, so no two names look alike, and none needs escaping.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pydanube.base.errors import NameInvalid, RequestInvalid
from pydanube.base.limits import PARTITIONS_MAX, PIPELINE_NAME_CHARACTERS_MAX, TOPIC_NAME_CHARACTERS_MAX

DEFAULT_NAMESPACE = "default"
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?", re.ASCII)
_RULE = "use letters, digits, `_`, `-` and `.`; do not start with `-` or `.`, and do not end with `.`"
_PARTITION = re.compile(r"(.+)-part-(0|[1-9][0-9]*)", re.ASCII)


class TopicName(NamedTuple):
    """`partition` is None for the whole topic, partitioned or not."""

    namespace: str
    name: str
    partition: int | None = None

    def __str__(self) -> str:
        whole = f"/{self.namespace}/{self.name}"
        return whole if self.partition is None else f"{whole}-part-{self.partition}"

    @property
    def whole(self) -> TopicName:
        return TopicName(self.namespace, self.name)


def parse_topic(text: str) -> TopicName:
    """Raises `NameInvalid` for anything but the name of a topic or partition."""
    if not isinstance(text, str):
        raise NameInvalid(f"a topic name must be a string, got {type(text).__name__}")
    if len(text) > TOPIC_NAME_CHARACTERS_MAX or not text.startswith("/") or text.count("/") != 2:
        raise NameInvalid(f"a topic name must look like /namespace/name, got {text[:100]!r}")
    _, namespace, name = text.split("/")
    check_namespace(namespace)
    if _PART.fullmatch(name) is None:
        raise NameInvalid(f"{name[:100]!r} is not a valid topic name: {_RULE}")
    partition = _PARTITION.fullmatch(name)
    if partition is None:
        return TopicName(namespace, name)
    number = partition[2]
    if len(number) > 9 or int(number) >= PARTITIONS_MAX:
        raise NameInvalid(f"a topic cannot have partition {number[:20]}")
    return TopicName(namespace, partition[1], int(number))


def full_name(text: str) -> str:
    """The full name of a topic: `orders` is short for `/default/orders`."""
    return text if "/" in text else f"/{DEFAULT_NAMESPACE}/{text}"


def parse_whole(text: str) -> TopicName:
    """Parses the name of a whole topic, for what cannot be done to one partition alone."""
    name = parse_topic(text)
    if name.partition is not None:
        raise RequestInvalid(f"{name} is a single partition; use the whole topic, {name.whole}")
    return name


def check_namespace(name: str) -> str:
    if len(name) > TOPIC_NAME_CHARACTERS_MAX or _PART.fullmatch(name) is None:
        raise NameInvalid(f"{name[:100]!r} is not a valid namespace name: {_RULE}")
    return name


def check_pipeline(name: str) -> str:
    if len(name) > PIPELINE_NAME_CHARACTERS_MAX or _PART.fullmatch(name) is None:
        raise NameInvalid(
            f"{name[:100]!r} is not a valid pipeline name: {_RULE}, and at most {PIPELINE_NAME_CHARACTERS_MAX} of them"
        )
    return name
