"""Options and columns of a write: what is not understood is named before anything is staged."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydanube.base.errors import ColumnInvalid, OptionInvalid
from pydanube.spark.sink_options import SinkOptions, check_append, check_columns
from pydanube.wire.batch import Codec


def test_names_do_not_care_about_case_and_short_topics_are_in_the_default_namespace(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    given = {"URL": "danubes://h:1", "Topic": "out", "WRITENAME": "second", "compression": "zstd", "tls.ca": str(ca)}
    found = SinkOptions.of(given)
    assert (found.url, found.topic, found.write_name) == ("danubes://h:1", "/default/out", "second")
    assert (found.codec, found.ca_file, found.application) == (Codec.ZSTD, str(ca), None)


def test_what_spark_hands_on_by_itself_is_no_error() -> None:
    found = SinkOptions.of({"topic": "out", "checkpointlocation": "/c", "queryname": "q"})
    assert found.checkpoint == "/c"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topics": "a"}, "did you mean topic"),
        ({"kafka.bootstrap.servers": "h:9092"}, "did you mean url"),
        ({"subscription": "s"}, "no option 'subscription'"),
        ({"path": "/x"}, "takes? no path"),
        ({"topic": "a b"}, "topic: "),
        ({"topic": "/default/a-part-0"}, "topic: "),
        ({"topic": "a", "compression": "gzip"}, "compression: .*zstd"),
        ({"topic": "a", "tls.ca": "/nowhere", "url": "danubes://h"}, "does not exist"),
        ({"topic": "a", "tls.ca": "/nowhere", "url": "danube://h"}, "write danubes://"),
        ({"topic": "a", "txnAppId": "app", "txnVersion": "9" * 5000}, "txnVersion must be a whole number"),
        ({"topic": "a", "txnAppId": "app"}, "together"),
        ({"topic": "a", "txnVersion": "1"}, "together"),
        ({"topic": "a", "txnAppId": "app", "txnVersion": "-1"}, "whole number"),
        ({"topic": "a", "txnAppId": "app", "txnVersion": "1.5"}, "whole number"),
        ({"topic": "a", "txnAppId": "", "txnVersion": "1"}, "txnAppId must be a string of 1 to"),
        ({"topic": "a", "writeName": "n" * 2_000}, "at most"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionInvalid, match=said):
        SinkOptions.of(given)


def test_versions_belong_to_an_application() -> None:
    found = SinkOptions.of({"topic": "a", "txnAppId": "app", "txnVersion": " 7 "})
    assert (found.application, found.version) == ("app", 7)


def test_columns_of_a_write() -> None:
    every = [("topic", "string"), ("value", "binary"), ("key", "string"), ("event_time", "timestamp")]
    assert check_columns([*every, ("attributes", "map<string,string>")], None)[:2] == ("topic", "value")
    assert check_columns([("value", "string collate UTF8_LCASE")], "/default/out") == ("value",)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("value", "binary"), ("vale", "binary")], "no column 'vale'; did you mean value"),
        ([("value", "binary"), ("offset", "bigint")], "no column 'offset'"),
        ([("value", "bigint")], "BINARY or STRING, not BIGINT"),
        ([("value", "binary"), ("event_time", "timestamp_ntz")], "TIMESTAMP, not TIMESTAMP_NTZ"),
        ([("value", "binary"), ("attributes", "map<string,int>")], "MAP<STRING,STRING>"),
        ([("value", "binary"), ("value", "binary")], "twice"),
        ([("key", "binary")], "the column value is missing"),
    ],
)
def test_a_wrong_column_is_named(fields: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ColumnInvalid, match=said):
        check_columns(fields, "/default/out")


def test_a_write_says_where_it_goes() -> None:
    with pytest.raises(OptionInvalid, match="column topic"):
        check_columns([("value", "binary")], None)


def test_a_topic_is_only_appended_to() -> None:
    check_append(overwrite=False)
    with pytest.raises(OptionInvalid, match=r"append.*overwrite and complete"):
        check_append(overwrite=True)
