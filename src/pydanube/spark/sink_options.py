"""The options of a write and the columns of its rows, checked once, on the driver, before any row is staged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from pydanube.base.errors import BatchInvalid, ColumnInvalid, DanubeError, OptionInvalid
from pydanube.base.fields import TextFields
from pydanube.base.limits import OFFSET_MAX, SINK_TEXT_BYTES_MAX
from pydanube.client.arguments import codec_of
from pydanube.spark.options import by_proper_names, ca_file_of, url_of, whole_name
from pydanube.spark.staging import BROKERS_OWN
from pydanube.wire.batch import Codec

NAMES = ("url", "topic", "writeName", "txnAppId", "txnVersion", "tls.ca", "compression")
SPARKS_OWN = ("checkpointLocation", "queryName")  # Spark passes them on from the stream
KAFKA_NAMES = {"kafka.bootstrap.servers": "url", "kafka.compression.type": "compression"}
COLUMNS = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "attributes": ("map<string,string>",),
    "event_time": ("timestamp",),
    "topic": ("string",),
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options. Without `topic`, every row names its own."""

    url: str
    ca_file: str | None
    topic: str | None
    write_name: str
    application: str | None  # an application that numbers its writes itself
    version: int
    codec: Codec
    checkpoint: str | None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SinkOptions:
        """Raises `OptionInvalid` for an option that is unknown or invalid."""
        calls, unknown = "save() and start() take", "a write has no option"
        values = by_proper_names(given, NAMES, KAFKA_NAMES, sparks_own=SPARKS_OWN, calls=calls, unknown=unknown)
        application, version = _version(values)
        return cls(
            url=url_of(values),
            ca_file=ca_file_of(values),
            topic=_topic(values),
            write_name=TextFields(OptionInvalid, values).text("writeName", "", most=SINK_TEXT_BYTES_MAX // 2),
            application=application,
            version=version,
            codec=_codec(values),
            checkpoint=values.get("checkpointLocation"),
        )


def _topic(values: Mapping[str, str]) -> str | None:
    if "topic" not in values:
        return None
    try:
        topic = whole_name(values["topic"])
    except DanubeError as error:
        raise OptionInvalid(f"topic: {error}") from None
    if topic.startswith(BROKERS_OWN):
        raise OptionInvalid(f"topic: {topic} belongs to the broker and cannot be written to")
    return topic


def _version(values: Mapping[str, str]) -> tuple[str | None, int]:
    if ("txnAppId" in values) != ("txnVersion" in values):
        raise OptionInvalid("txnAppId and txnVersion must be given together: who writes, and which of its writes it is")
    if "txnAppId" not in values:
        return None, 0
    checked = TextFields(OptionInvalid, values)
    return checked.text("txnAppId", least=1, most=SINK_TEXT_BYTES_MAX // 2), checked.whole("txnVersion", 0, OFFSET_MAX)


def _codec(values: Mapping[str, str]) -> Codec:
    try:
        return codec_of(values.get("compression", "none").strip())
    except BatchInvalid as error:
        raise OptionInvalid(f"compression: {error}") from None


def check_append(*, overwrite: bool) -> None:
    if overwrite:
        raise OptionInvalid(
            "a topic can only be appended to: write with mode('append'), and streams with outputMode('append'); "
            "overwrite and complete would have to take back what others have read"
        )


def check_columns(fields: Iterable[tuple[str, str]], topic: str | None) -> tuple[str, ...]:
    """The names of the columns, which are given by name and type."""
    names: list[str] = []
    for name, kind in fields:
        if name not in COLUMNS:
            nearest = get_close_matches(name, COLUMNS, 1, 0.0)[0]
            raise ColumnInvalid(
                f"a topic has no column {name[:100]!r}; did you mean {nearest}? "
                "Leave out columns that a topic does not have"
            )
        if kind.split(" collate ")[0] not in COLUMNS[name]:
            wanted = " or ".join(kind.upper() for kind in COLUMNS[name])
            raise ColumnInvalid(f"the column {name} must be {wanted}, not {kind[:100].upper()}: cast it")
        if name in names:
            raise ColumnInvalid(f"the column {name} is given twice")
        names.append(name)
    if "value" not in names:
        raise ColumnInvalid("the column value is missing: it holds the payload")
    if "topic" not in names and topic is None:
        raise OptionInvalid("name the topic with option('topic', ...), or with a column topic in each row")
    return tuple(names)
