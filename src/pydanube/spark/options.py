"""The options of the data source, parsed and checked once, on the driver. Executors get them as values.

Names and defaults are those of Spark's Kafka source, if it has the option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from pydanube.base.errors import DanubeError, NameInvalid, OptionInvalid
from pydanube.base.fields import TextFields, shown
from pydanube.base.limits import MILLISECOND, NAME_BYTES_MAX, OFFSET_MAX, SECOND
from pydanube.base.names import check_namespace, full_name, parse_whole
from pydanube.base.redaction import is_secret
from pydanube.base.units import bytes_of, seconds_of
from pydanube.client.transport import parse_addresses
from pydanube.spark.decode import VALUE_NAMES, ValueOptions, value_options
from pydanube.spark.offsets import GivenOffsets, parse_given_offsets

DEFAULT_URL = "danube://127.0.0.1:6650"
EARLIEST, LATEST = "earliest", "latest"
OFF = "off"
NAMES = (
    "url",
    "topic",
    "topicPattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "subscription",
    "subscription.release",
    "subscription.idleSeconds",
    "failOnDataLoss",
    "minPartitions",
    "cores",
    "includeAttributes",
    "includeMeta",
    "watermarkOf",
    "syncCheckpoint",
    *VALUE_NAMES,
    "objects.url",
    "tls.ca",
)
KAFKA_NAMES = {  # names of Spark's Kafka source
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "kafka.bootstrap.servers": "url",
    "kafka.group.id": "subscription",
    "groupidprefix": "subscription",
    "includeheaders": "includeAttributes",
}
OF_STREAMS = (
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "subscription",
    "subscription.release",
    "subscription.idleSeconds",
    "watermarkOf",
    "syncCheckpoint",
)
OF_BATCHES = ("endingOffsets", "endingTimestamp")
IDLE_SECONDS = 7 * 24 * 3600  # a week: long enough for a holiday, short enough to save disk space
TASKS_MAX = 100_000  # more than a driver can plan
DIGITS_MAX = 20  # of a number
GLOB = re.compile(r"[A-Za-z0-9_*?\[][A-Za-z0-9_.*?\[\]!-]*(?<!\.)", re.ASCII)  # what may match a topic's name


@dataclass(frozen=True, slots=True)
class At:
    """The first message that the broker received at this time or later, in microseconds since 1970."""

    time: int


Position = str | At | GivenOffsets  # earliest, latest, a time, or offsets by topic and partition


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed options. Either `topics` or `pattern` is set."""

    url: str
    ca_file: str | None
    topics: tuple[str, ...]
    pattern: str | None
    starting: Position
    ending: Position
    records_max: int | None  # of one trigger
    bytes_max: int | None
    subscription: str | None
    fail_on_data_loss: bool
    tasks_min: int | None
    cores: int | None  # of all executors; by default those of the driver's machine
    attributes: bool
    meta: bool
    objects_url: str | None = None  # where executors find segments, if not where the broker says; or `off`
    value: ValueOptions | None = None  # how payloads are decoded, if they are
    release: bool = False  # whether messages that were read may be deleted, if nothing else needs them
    idle_seconds: int | None = None  # after which an unused subscription is deleted; None: never
    watermark_of: str | None = None  # the query's checkpoint, for the column `watermark`
    sync_checkpoint: str | None = None  # the query's checkpoint, which is synced before messages are released

    @classmethod
    def of(cls, given: Mapping[str, str], *, streaming: bool) -> Options:
        """Raises `OptionInvalid` for an option that is unknown, invalid or not for this kind of query."""
        values = known(given)
        checked = TextFields(OptionInvalid, values)
        for name in OF_BATCHES if streaming else OF_STREAMS:
            if name in values:
                raise OptionInvalid(f"{name} works only with {'batch reads' if streaming else 'streams'}")
        topics, pattern = _topics(values)
        options = cls(
            url=url_of(values),
            ca_file=ca_file_of(values),
            topics=topics,
            pattern=pattern,
            starting=_position(values, "starting", LATEST if streaming else EARLIEST),
            ending=_position(values, "ending", LATEST),
            records_max=checked.whole("maxRecordsPerTrigger", 1, OFFSET_MAX, None),
            bytes_max=_size(values, "maxBytesPerTrigger"),
            subscription=checked.text("subscription", None, least=1, most=NAME_BYTES_MAX),
            fail_on_data_loss=checked.flag("failOnDataLoss", True),
            tasks_min=checked.whole("minPartitions", 1, TASKS_MAX, None),
            cores=checked.whole("cores", 1, TASKS_MAX, None),
            attributes=checked.flag("includeAttributes", False),
            meta=checked.flag("includeMeta", False),
            objects_url=_objects_url(values),
            value=value_options(values),
            release=checked.flag("subscription.release", False),
            idle_seconds=_idle_seconds(values),
            watermark_of=values.get("watermarkOf"),
            sync_checkpoint=values.get("syncCheckpoint"),
        )
        if not streaming and options.starting == LATEST:
            raise OptionInvalid("a batch read cannot start at latest: there would be nothing to read")
        if options.ending == EARLIEST:
            raise OptionInvalid("endingOffsets must be latest or JSON: nothing comes before earliest")
        return options


class SchemaOptions(NamedTuple):
    attributes: bool
    meta: bool
    value: ValueOptions | None
    watermark: bool


def schema_options(given: Mapping[str, str]) -> SchemaOptions:
    """Parses them before the kind of query is known."""
    values = known(given)
    checked = TextFields(OptionInvalid, values)
    attributes, meta = checked.flag("includeAttributes", False), checked.flag("includeMeta", False)
    return SchemaOptions(attributes, meta, value_options(values), "watermarkOf" in values)


def known(given: Mapping[str, str]) -> dict[str, str]:
    return by_proper_names(given, NAMES, KAFKA_NAMES, calls="load() takes", unknown="unknown option")


def by_proper_names(
    given: Mapping[str, str],
    names: Sequence[str],
    kafka_names: Mapping[str, str],
    *,
    sparks_own: Sequence[str] = (),
    calls: str,
    unknown: str,
) -> dict[str, str]:
    """The options by their proper names; Spark ignores case. Errors begin with `calls` and `unknown`."""
    proper = {name.lower(): name for name in (*names, *sparks_own)}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() == "path":
            raise OptionInvalid(f"{calls} no path here; name the topic with option('topic', ...)")
        if name.lower() not in proper:
            nearest = proper[get_close_matches(name.lower(), [each.lower() for each in names], 1, 0.0)[0]]
            meant = kafka_names.get(name.lower(), nearest)
            raise OptionInvalid(f"{unknown} {name[:100]!r}; did you mean {meant}?")
        values[proper[name.lower()]] = str(value)
    return values


def whole_name(topic: str) -> str:
    """`orders` is short for `/default/orders`."""
    return str(parse_whole(full_name(topic)))


def url_of(values: Mapping[str, str]) -> str:
    """The address, resolved on the driver, because executors have another environment."""
    url = values.get("url") or os.environ.get("DANUBE_URL") or DEFAULT_URL
    parse_addresses(url)
    return url


def ca_file_of(values: Mapping[str, str]) -> str | None:
    """The CA file, checked on the driver, which needs it too."""
    name = values.get("tls.ca")
    if name is None:
        return None
    if not parse_addresses(url_of(values))[0].tls:
        raise OptionInvalid("tls.ca needs a broker with TLS, but url does not use it: write danubes://host:port")
    if not os.path.isfile(name):
        raise OptionInvalid(f"tls.ca: the file {name[:200]!r} does not exist")
    return name


def _objects_url(values: Mapping[str, str]) -> str | None:
    """The location for executors. It is part of the plan, so it must not contain credentials."""
    url = values.get("objects.url")
    if url is None or url == OFF:
        return url
    try:
        parts = urlsplit(url)
        secrets = [name for name, _ in parse_qsl(parts.query) if is_secret(name)]
    except ValueError:
        raise OptionInvalid("objects.url must look like s3://bucket/prefix, or be off") from None
    if not parts.scheme or "@" in parts.netloc or secrets:
        raise OptionInvalid(
            "objects.url must look like s3://bucket/prefix, without credentials: executors have their own"
        )
    return url


def _topics(values: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    if ("topic" in values) == ("topicPattern" in values):
        raise OptionInvalid("give either topic (several are separated by commas) or topicPattern")
    if "topicPattern" in values:
        return (), _pattern(values["topicPattern"])
    names = [name.strip() for name in values["topic"].split(",")]
    if not all(names):
        raise OptionInvalid(f"topic must be a name, or names separated by commas, got {shown(values['topic'])}")
    topics = []
    for name in names:
        try:
            topics.append(whole_name(name))
        except DanubeError as error:
            raise OptionInvalid(f"topic: {error}") from None
    return tuple(sorted(set(topics))), None


def _pattern(text: str) -> str:
    """A pattern as consumers take it: `/namespace/orders-*`, with a namespace that is written out."""
    pattern = text if "/" in text else f"/default/{text}"
    parts = pattern.split("/")
    try:
        if len(parts) != 3 or parts[0] or not parts[2]:
            raise NameInvalid(pattern)
        check_namespace(parts[1])
    except NameInvalid:
        raise OptionInvalid(f"topicPattern must look like /default/orders-*, got {shown(text)}") from None
    if GLOB.fullmatch(parts[2]) is None:
        raise OptionInvalid(
            f"topicPattern: no topic can have a name like {parts[2][:100]!r}; a pattern is not a regular expression: "
            "* matches any characters, ? matches one, [ab] matches a or b"
        )
    return pattern


def _position(values: Mapping[str, str], which: str, default: str) -> Position:
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if offsets in values and timestamp in values:
        raise OptionInvalid(f"give {offsets} or {timestamp}, not both")
    if timestamp in values:
        return At(_microseconds(timestamp, values[timestamp]))
    text = values.get(offsets, default).strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    return parse_given_offsets(text, offsets, whole_name)


def _microseconds(name: str, text: str) -> int:
    """Milliseconds since 1970, as Spark's Kafka source takes them, or a time in ISO 8601 with its zone."""
    wrong = OptionInvalid(
        f"{name} must be milliseconds since 1970 or a time such as 2026-01-31T12:00:00Z, got {shown(text)}"
    )
    if text.strip().isdecimal() and len(text.strip()) <= DIGITS_MAX:
        found = int(text) * MILLISECOND
    else:
        try:
            time = datetime.fromisoformat(text.strip())
        except ValueError:
            raise wrong from None
        if time.tzinfo is None:
            raise OptionInvalid(f"{name} needs a time zone: for example {time.isoformat()}Z")
        found = round(time.timestamp() * SECOND)
    if not 0 <= found <= OFFSET_MAX:
        raise wrong
    return found


def _size(values: Mapping[str, str], name: str) -> int | None:
    if name not in values:
        return None
    try:
        found = bytes_of(values[name])
    except ValueError as error:
        raise OptionInvalid(f"{name}: {error}") from None
    if not 0 < found <= OFFSET_MAX:
        raise OptionInvalid(
            f"{name} must be a size such as 64MiB, from 1 to {OFFSET_MAX} bytes, got {shown(values[name])}"
        )
    return found


def _idle_seconds(values: Mapping[str, str]) -> int | None:
    name = "subscription.idleSeconds"
    text = values.get(name, str(IDLE_SECONDS))
    if text.strip().lower() == "never":
        return None
    try:
        found = seconds_of(text)
    except ValueError as error:
        raise OptionInvalid(f"{name}: {error}; or never") from None
    if found < 1 or not found.is_integer():
        raise OptionInvalid(
            f"{name} must be a duration of whole seconds such as 7d, 1 or more, or never, got {shown(text)}"
        )
    return int(found)
