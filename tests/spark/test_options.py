"""Options are read as Spark's users write them; what is wrong is said by name."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pydanube.base.errors import AddressInvalid, OptionInvalid
from pydanube.base.limits import OFFSET_MAX
from pydanube.spark.offsets import GivenTopicOffsets
from pydanube.spark.options import NAMES, At, Options
from pydanube.spark.sink_options import NAMES as SINK_NAMES

TOPIC = {"topic": "orders"}


def batch(**given: str) -> Options:
    return Options.of(TOPIC | given, streaming=False)


def stream(**given: str) -> Options:
    return Options.of(TOPIC | given, streaming=True)


def test_defaults_are_those_of_spark() -> None:
    assert (batch().starting, batch().ending, stream().starting) == ("earliest", "latest", "latest")
    assert batch().topics == ("/default/orders",)
    assert batch().fail_on_data_loss
    assert stream().records_max is stream().bytes_max is stream().subscription is None


@pytest.fixture
def authority(tmp_path: Path) -> str:
    (tmp_path / "ca.pem").write_text("read by whoever connects")
    return str(tmp_path / "ca.pem")


def test_names_are_read_whatever_their_case(authority: str) -> None:
    given = {"TOPICPATTERN": "orders-*", "startingoffsets": "EARLIEST", "IncludeMeta": "TRUE", "TLS.ca": authority}
    options = Options.of(given | {"URL": "danubes://h"}, streaming=True)
    assert (options.pattern, options.starting, options.meta, options.ca_file) == (
        "/default/orders-*",
        "earliest",
        True,
        authority,
    )


def test_several_topics_are_named_with_commas() -> None:
    assert batch(topic="b, /shop/a,b").topics == ("/default/b", "/shop/a")


def test_the_url_comes_from_the_environment_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DANUBE_URL", raising=False)
    assert batch().url == "danube://127.0.0.1:6650"
    monkeypatch.setenv("DANUBE_URL", "danube://elsewhere:1")
    assert batch().url == "danube://elsewhere:1"
    assert batch(url="danube://here:2").url == "danube://here:2"
    with pytest.raises(AddressInvalid):
        batch(url="danube://user:secret@here:2")


def test_times_are_milliseconds_or_iso() -> None:
    assert batch(startingTimestamp="1500").starting == At(1_500_000)
    assert batch(endingTimestamp="1970-01-01T00:00:02.5+00:00").ending == At(2_500_000)


def test_the_time_zone_that_is_missing_is_shown_as_it_is_written() -> None:
    with pytest.raises(OptionInvalid, match="for example 2026-01-01T00:00:00Z"):
        batch(startingTimestamp="2026-01-01")
    assert batch(startingTimestamp="2026-01-01T00:00:00Z").starting == At(1_767_225_600_000_000)


def test_an_authority_is_a_file_and_of_a_broker_with_tls(authority: str) -> None:
    assert batch(url="danubes://h", **{"tls.ca": authority}).ca_file == authority
    with pytest.raises(OptionInvalid, match="the file '/nowhere"):
        batch(url="danubes://h", **{"tls.ca": "/nowhere/ca.pem"})
    with pytest.raises(OptionInvalid, match="url does not use it: write danubes://"):
        batch(url="danube://h", **{"tls.ca": authority})


def test_offsets_are_json_by_topic_and_partition() -> None:
    given = '{"orders": {"0": 12, "1": -2}, "/shop/a": {"id": 7, "0": -1}}'
    assert stream(startingOffsets=given).starting == {
        "/default/orders": GivenTopicOffsets(None, {0: 12, 1: -2}),
        "/shop/a": GivenTopicOffsets(7, {0: -1}),
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topics": "a"}, "unknown option 'topics'; did you mean topic?"),
        ({"maxOffsetsPerTrigger": "1"}, "did you mean maxRecordsPerTrigger?"),
        ({"failondatalos": "true"}, "did you mean failOnDataLoss?"),
        ({"path": "a"}, "takes no path"),
        ({"topicPattern": "a*"}, "either topic"),
        ({"topic": "a,,b"}, "names separated by commas"),
        ({"topic": "a b"}, "topic: 'a b' is not a valid topic name"),
        ({"topic": "orders-part-1"}, "is a single partition"),
        ({"startingOffsets": "first"}, "startingOffsets must be earliest, latest or JSON"),
        ({"startingOffsets": "[1]"}, 'must look like {"/default/orders"'),
        ({"startingOffsets": '{"orders": 1}'}, "must have offsets by partition"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "must be an offset, -1"),
        ({"startingOffsets": '{"orders": {"0": true}}'}, "must be an offset, -1"),
        ({"startingOffsets": '{"orders": {"x": 1}}'}, "has no partition 'x'"),
        ({"startingOffsets": '{"orders": {"0": 1, "0": 2}}'}, "startingOffsets has '0' twice"),
        ({"startingOffsets": '{"orders": {"0": 1, "00": 2}}'}, "orders has partition 0 twice"),
        ({"startingOffsets": '{"orders": {"0": 1}, "/default/orders": {"0": 2}}'}, "'/default/orders' twice"),
        ({"startingOffsets": '{"orders": {"0": 1}, "orders": {"0": 2}}'}, "startingOffsets has 'orders' twice"),
        (
            {"startingOffsets": '{"orders": {"0": ' + "9" * 5000 + "}}"},
            "startingOffsets must be earliest, latest or JSON",
        ),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "not both"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingTimestamp": "-5"}, "milliseconds since 1970"),
        ({"startingTimestamp": "9" * 5000}, "milliseconds since 1970"),
        ({"startingTimestamp": "2026-01-31T12:00:00"}, "needs a time zone: for example 2026-01-31T12:00:00Z"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"minPartitions": "0"}, "minPartitions must be a whole number from 1"),
        ({"minPartitions": "9" * 5000}, "minPartitions must be a whole number from 1"),
        ({"minPartitions": "1.5"}, "minPartitions must be a whole number from 1"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_what_is_wrong_is_named(given: dict[str, str], said: str, streaming: bool) -> None:
    with pytest.raises(OptionInvalid) as raised:
        Options.of(TOPIC | given, streaming=streaming)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("given", "streaming", "said"),
    [
        ({"endingOffsets": "latest"}, True, "endingOffsets works only with batch reads"),
        ({"endingTimestamp": "1"}, True, "endingTimestamp works only with batch reads"),
        ({"maxRecordsPerTrigger": "1"}, False, "maxRecordsPerTrigger works only with streams"),
        ({"maxBytesPerTrigger": "1"}, False, "maxBytesPerTrigger works only with streams"),
        ({"subscription": "s"}, False, "subscription works only with streams"),
        ({"startingOffsets": "latest"}, False, "cannot start at latest"),
        ({"endingOffsets": "earliest"}, False, "nothing comes before earliest"),
        ({"subscription": ""}, True, "subscription must be a string of 1"),
    ],
)
def test_an_option_of_the_other_kind_of_query_is_refused(given: dict[str, str], streaming: bool, said: str) -> None:
    with pytest.raises(OptionInvalid) as raised:
        Options.of(TOPIC | given, streaming=streaming)
    assert said in str(raised.value)


@pytest.mark.parametrize("pattern", ["a/b", "/d*/orders", "/default/", "/a/b/c"])
def test_a_pattern_spells_out_its_namespace(pattern: str) -> None:
    with pytest.raises(OptionInvalid, match="topicPattern must look like"):
        Options.of({"topicPattern": pattern}, streaming=False)


@pytest.mark.parametrize("pattern", [r"orders-\d+", "^orders$", "(a|b)", "a+", ".*", "-a*", "a{2}", "a b", "a*."])
def test_a_pattern_that_no_name_can_match_is_refused(pattern: str) -> None:
    with pytest.raises(OptionInvalid, match="a pattern is not a regular expression"):
        Options.of({"topicPattern": pattern}, streaming=False)


@pytest.mark.parametrize("pattern", ["*", "orders-*", "/shop/a?.[bc][!d]-*", "[a-c]*", "orders.*"])
def test_a_pattern_that_a_name_may_match_is_taken(pattern: str) -> None:
    assert (Options.of({"topicPattern": pattern}, streaming=False).pattern or "").endswith(pattern)


# -- sizes and durations -----------------------------------------------------------------------------------------------

SIZES = [name for name in (*NAMES, *SINK_NAMES) if "bytes" in name.lower()]
DURATIONS = [name for name in (*NAMES, *SINK_NAMES) if "seconds" in name.lower()]


def values(name: str, text: str) -> set[object]:
    """What the option became, whichever field has it: those that are not as without it."""
    given, without = stream(**{name: text}), stream()
    return {getattr(given, each.name) for each in fields(Options)} - {
        getattr(without, each.name) for each in fields(Options)
    }


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    ("text", "number"), [("5", 5), (" 35000 ", 35_000), ("10MB", 10_000_000), ("64 mib", 64 << 20)]
)
def test_every_size_is_bytes_or_has_a_unit(name: str, text: str, number: int) -> None:
    assert values(name, text) == {number}


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize(("text", "number"), [("90", 90), ("5000ms", 5), ("1h30m", 5_400), ("2 weeks", 1_209_600)])
def test_every_duration_is_seconds_or_has_a_unit(name: str, text: str, number: int) -> None:
    assert values(name, text) == {number}


@pytest.mark.parametrize("text", ["0", "-1", "", "many", "10M", "1.5", "9" * 30, str(OFFSET_MAX + 1)])
@pytest.mark.parametrize("name", SIZES)
def test_a_wrong_size_is_named_with_one_that_is_right(name: str, text: str) -> None:
    with pytest.raises(OptionInvalid, match=rf"^{name}\b.*(64MiB|write 10MB or 10MiB)"):
        stream(**{name: text})


@pytest.mark.parametrize("text", ["0", "-1", "", "soon", "0.5s", "1500ms", "1 month"])
@pytest.mark.parametrize("name", DURATIONS)
def test_a_wrong_duration_is_named_with_one_that_is_right(name: str, text: str) -> None:
    with pytest.raises(OptionInvalid, match=rf"^{name}\b.*(such as 7d|write it as 250ms|use days).*never"):
        stream(**{name: text})


def test_no_option_has_a_size_or_a_duration_in_another_unit() -> None:
    others = re.compile("Millis|Ms$|Minutes|Hours|Days|Size|Timeout|Interval|KB|MB")
    assert [name for name in (*NAMES, *SINK_NAMES) if others.search(name)] == []


def test_every_option_is_on_the_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/spark.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []
