"""`danube produce` and `danube consume`: what goes in comes out, and nothing is left behind that was not asked for."""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.conftest import Danube
from pydanube import sync
from pydanube.cli.messages.formats import by_format
from pydanube.cli.messages.sources import fill_template
from pydanube.cli.messages.text import Draft, draft_of, draft_of_line, to_json
from pydanube.cli.shell.values import read_time
from pydanube.operations.messages import NewMessage, text_or_base64


def values_of(danube: Danube, topic: str, *options: str) -> list[str]:
    return danube("consume", topic, "--from", "earliest", "--exit-at-end", *options).lines


# -- producing ---------------------------------------------------------------------------------------------------------


def test_every_line_of_stdin_is_a_message(danube: Danube, topic: str) -> None:
    ended = danube("produce", topic, stdin=b"one\r\ntwo\n\nlast without an end")
    assert (ended.code, ended.out, ended.err) == (0, b"", "4 messages acknowledged\n")
    assert values_of(danube, topic) == ["one", "two", "", "last without an end"]


def test_files_are_read_one_after_the_other(danube: Danube, topic: str, tmp_path: Path) -> None:
    many = [f"line {number} {'x' * 50}" for number in range(20_000)]
    (tmp_path / "a").write_text("\n".join(many))
    (tmp_path / "b").write_text("from b\n")
    assert (
        danube("produce", topic, "--file", str(tmp_path / "a"), "--file", str(tmp_path / "b")).err
        == "20,001 messages acknowledged\n"
    )
    assert values_of(danube, topic) == [*many, "from b"]


def test_a_whole_file_is_one_message(danube: Danube, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xff\n\r\n\0")
    (tmp_path / "b").write_bytes(b"")
    files = ("--file", str(tmp_path / "a"), "--file", str(tmp_path / "b"))
    assert danube("produce", topic, *files, "--whole", "-k", "{n}").code == 0
    assert danube("produce", topic, "--whole", stdin=b"1\n2\n").err == "1 message acknowledged\n"
    shown = danube("consume", topic, "--from", "earliest", "-e", "-f", "%k %s")
    assert shown.lines == ["1 5", "2 0", " 4"]
    assert danube("produce", topic, "--whole", "--json").code == 2
    assert danube("produce", topic, "--whole", "--value", "v").code == 2


def test_a_file_that_is_not_there_is_named(danube: Danube, topic: str) -> None:
    ended = danube("produce", topic, "--file", "gone.txt")
    assert ended.code == 2
    assert "'gone.txt' does not exist" in ended.err
    assert danube("topic", "describe", topic).code == 3  # nothing was made for it


def test_arguments_are_messages(danube: Danube, topic: str) -> None:
    assert danube("produce", topic, "hello").err == "1 message acknowledged\n"
    danube("produce", topic, "{n} stays", "as it is", "-k", "k{n}")
    danube("produce", topic, "-", stdin=b"a line\n")
    assert values_of(danube, topic, "-f", "%k|%v") == ["|hello", "k1|{n} stays", "k2|as it is", "|a line"]


def test_a_file_that_is_given_as_a_message_is_refused_with_what_to_write(
    danube: Danube, topic: str, tmp_path: Path
) -> None:
    name = str(tmp_path / "orders.txt")
    Path(name).write_text("1\n2\n")
    ended = danube("produce", topic, name)
    assert ended.code == 2
    assert f"is a file; use --file {name} to publish its lines, or --value {name} to publish the name" in ended.err
    assert danube("produce", topic, "--value", name).code == 0
    for other in (("--value", "v"), ("--file", name), ("--whole",)):
        assert "use only one of MESSAGE, --value and --file" in danube("produce", topic, "hello", *other).err


def test_messages_are_delivered_later_if_that_is_asked_for(danube: Danube, topic: str) -> None:
    now = time.time_ns() // 1000
    ended = danube("produce", topic, "soon", "--delay", "1h")
    assert re.fullmatch(r"1 message acknowledged; Shared subscriptions deliver from .* UTC \(in 1 h\)\n", ended.err)
    danube("produce", topic, "then", "--at", "2126-01-31T10:00Z")
    line = json.dumps({"value": "own", "delivery_time": "2127-01-31T10:00:00Z"}).encode()
    danube("produce", topic, "--json", "--delay", "1h", stdin=line)
    times = [json.loads(each)["delivery_time"] for each in values_of(danube, topic, "-o", "json")]
    assert 0 <= times[0] - now - 3_600_000_000 < 60_000_000
    assert times[1:] == [read_time("2126-01-31T10:00Z"), read_time("2127-01-31T10:00Z")]
    danube("subscription", "create", topic, "later", "--type", "shared", "--from", "earliest")
    assert danube("subscription", "describe", topic, "later", "-o", "json").json["backlog"] == 3
    assert "use either --delay or --at" in danube("produce", topic, "x", "--delay", "1s", "--at", "tomorrow").err
    assert "use --delay '3s'" in danube("produce", topic, "x", "--at", "3s").err


def test_a_template_is_filled_in_for_each_message(danube: Danube, topic: str) -> None:
    danube("produce", topic, "--value", '{"n": {n}, "other": {x}}', "--count", "2500", "--key", "k{n}", "-q")
    found = values_of(danube, topic, "-f", "%k %v")
    assert found[0] == 'k1 {"n": 1, "other": {x}}'
    assert found[-1] == 'k2500 {"n": 2500, "other": {x}}'
    assert len(found) == 2500
    assert fill_template("{uuid}", 1) != fill_template("{uuid}", 1)
    assert fill_template("{now}", 1).endswith(b"Z")


def test_keys_are_split_off_and_attributes_added(danube: Danube, topic: str) -> None:
    danube("produce", topic, "-K", ":", "-H", "color=red", "-H", "empty=", "--key", "else", stdin=b"a:1:x\nno key\n")
    assert values_of(danube, topic, "-f", "%k|%v|%h") == ["a|1:x|color=red,empty=", "else|no key|color=red,empty="]


def test_lines_of_json_say_key_value_and_attributes(danube: Danube, topic: str) -> None:
    first = {"key": "k", "value": {"id": 1}, "attributes": {"a": "b"}}
    drafts = [first, {"value_base64": "/w=="}, {"value": None}]
    lines = "\n".join(map(json.dumps, drafts)).encode()
    assert danube("produce", topic, "--json", stdin=lines).code == 0
    whole, second, third = map(json.loads, values_of(danube, topic, "-o", "json"))
    assert (whole["key"], whole["value"], whole["attributes"]) == ("k", '{"id": 1}', {"a": "b"})
    assert (second["value_base64"], "value" in second) == ("/w==", False)
    assert third["value"] is None


def test_what_comes_before_a_wrong_line_is_published_and_counted(danube: Danube, topic: str) -> None:
    ended = danube("produce", topic, "--json", stdin=b'{"value": "good"}\nnot json\n')
    assert ended.code == 2
    assert ended.err.startswith("1 message acknowledged\ndanube: line 2: not valid JSON")
    assert values_of(danube, topic) == ["good"]


def test_a_rate_is_kept(danube: Danube, topic: str) -> None:
    assert danube("produce", topic, "--value", "v", "--count", "11", "--rate", "50").code == 0
    times = [read_time(text) or 0 for text in values_of(danube, topic, "-f", "%T")]
    assert times[-1] - times[0] >= 150_000


def test_count_ends_reading(danube: Danube, topic: str) -> None:
    assert danube("produce", topic, "-n", "2", stdin=b"1\n2\n3\n").err == "2 messages acknowledged\n"


def test_a_topic_is_taken_as_what_it_is_unless_the_other_kind_is_asked_for(danube: Danube, topic: str) -> None:
    danube("topic", "create", topic, "--no-reliable")
    assert danube("produce", topic, stdin=b"x\n").err == "1 message sent (the topic is not reliable)\n"
    ended = danube("produce", topic, "--reliable", stdin=b"x\n")
    assert ended.code == 1
    assert "0 messages acknowledged" in ended.err


# -- consuming ---------------------------------------------------------------------------------------------------------


def test_reading_leaves_no_subscription_behind(danube: Danube, topic: str) -> None:
    danube("produce", topic, stdin=b"1\n2\n")
    assert values_of(danube, topic) == ["1", "2"]
    assert danube("subscription", "list", topic, "-o", "json").json == []


def test_it_begins_where_it_is_told(danube: Danube, topic: str) -> None:
    danube("produce", topic, stdin=b"1\n2\n3\n")
    assert danube("consume", topic, "--offset", "1", "-e").lines == ["2", "3"]
    assert danube("consume", topic, "--since", "10m", "-e", "-n", "1").lines == ["1"]
    assert danube("consume", topic, "--from", "latest", "-e").lines == []
    assert danube("consume", topic, "-e").lines == []
    assert danube("consume", topic, "--from", "2000-01-01", "-n", "3").lines == ["1", "2", "3"]


def test_a_subscription_gets_each_message_once(danube: Danube, topic: str) -> None:
    danube("produce", topic, "--value", "{n}", "--count", "3000")
    consume = ("consume", topic, "-s", "s", "-e")
    assert danube(*consume, "--from", "earliest", "-n", "1200").lines == [str(number) for number in range(1, 1201)]
    assert danube("subscription", "describe", topic, "s", "-o", "json").json["backlog"] == 1800
    assert danube(*consume).lines == [str(number) for number in range(1201, 3001)]
    assert danube(*consume).lines == []


def test_the_same_command_continues_a_subscription_and_says_so(danube: Danube, topic: str) -> None:
    danube("produce", topic, "1", "2")
    consume = ("consume", topic, "-s", "s", "--from", "earliest", "-e")
    first = danube(*consume)
    assert (first.lines, first.err) == (["1", "2"], "")
    danube("produce", topic, "3")
    again = danube(*consume)
    assert (again.code, again.lines) == (0, ["3"])
    assert again.err.startswith("danube: subscription s exists; continuing at offset 2 (To start elsewhere, run ")


def test_people_are_told_what_is_stored_when_only_new_messages_are_printed(
    danube: Danube, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    danube("topic", "create", topic, "--partitions", "2")
    danube("produce", topic, "1", "2")
    assert danube("consume", topic, "-e").err == ""  # a program is not
    monkeypatch.setattr("pydanube.cli.commands.consume.stderr_is_terminal", lambda: True)
    assert danube("consume", topic, "-e").err == "danube: no new messages; 2 stored, `--from earliest` shows them\n"
    assert danube("consume", topic, "--from", "earliest", "-e").err == ""
    danube("topic", "truncate", topic, "--yes")
    assert danube("consume", topic, "-e").err == "danube: no new messages\n"


def test_people_are_told_where_a_subscription_begins(
    danube: Danube, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    danube("produce", topic, "1", "2")
    seek = f"danube subscription seek /default/{topic} s --to earliest"
    monkeypatch.setattr("pydanube.cli.commands.consume.stderr_is_terminal", lambda: True)
    told = danube("consume", topic, "-s", "s", "-e").err
    assert told == f"danube: no new messages; 2 stored, `{seek}` goes back to them\n"
    assert danube(*seek.split()[1:], "--yes").code == 0
    continued = danube("consume", topic, "-s", "s", "-n", "1")
    assert continued.lines == ["1"]
    assert continued.err == "danube: subscription s continues at offset 0, with 2 messages to do\n"
    assert danube("consume", topic, "-s", "s", "-e").err == ""


@pytest.mark.parametrize("type", ["Shared", "KEY_SHARED", "key-shared", "KeyShared"])
def test_a_type_may_be_written_in_any_case(danube: Danube, topic: str, type: str) -> None:
    danube("produce", topic, "1")
    assert danube("consume", topic, "-s", "s", "--type", type, "--from", "earliest", "-e").lines == ["1"]
    assert danube("subscription", "create", topic, "t", "--type", type).code == 0
    assert danube("subscription", "create", topic, "u", "--type", "Fanout").code == 2


def test_exit_at_end_says_what_is_delayed(danube: Danube, topic: str) -> None:
    danube("produce", topic, "now")
    danube("produce", topic, "later", "--delay", "1h")
    ended = danube("consume", topic, "-s", "s", "--type", "shared", "--from", "earliest", "-e")
    assert ended.lines == ["now"]
    assert re.fullmatch(r"danube: 1 message left: 1 delayed until .* UTC \(in (1 h|59 min \d+ s)\)\n", ended.err)
    assert re.search(r"delayed_until +.* UTC \(in ", danube("subscription", "describe", topic, "s").text)


@pytest.mark.parametrize(("kind", "stopped"), [("exclusive", 3), ("key_shared", 2)])
def test_exit_at_end_says_what_is_blocked(danube: Danube, url: str, topic: str, kind: str, stopped: int) -> None:
    danube("produce", topic, "-K", ":", stdin=b"a:bad\nb:good\na:behind\n")
    danube("subscription", "create", topic, "s", "--type", kind, "--from", "earliest", "--option",
           "failure.max_redelivery_count=0")  # fmt: skip
    with sync.connect(url) as client, client.consumer(topic, subscription="s", type=kind, create=False) as consumer:
        consumer.nack(consumer.receive(5))
        while client.admin.describe_subscription(topic, "s")["blocked"] is None:
            pass
    ended = danube("consume", topic, "-s", "s", "-e")
    assert ended.lines == ["good"] * (3 - stopped)
    assert ended.err == f"danube: {stopped} messages left: {stopped} blocked at offset 0\n"


def test_explaining_tells_the_time_of_day_and_how_far_off_it_is(danube: Danube, topic: str) -> None:
    danube("produce", topic, "later", "--delay", "94m")
    assert danube("consume", topic, "-s", "s", "--type", "shared", "--from", "earliest", "-e").lines == []
    with_times = danube("subscription", "explain", topic, "s", "--offset", "0").text
    assert re.search(r"[0-9:]{8} UTC \(in 1 h 3[34] min\)", with_times), with_times


def test_explaining_a_partitioned_topic_is_about_each_partition_with_something_to_do(
    danube: Danube, topic: str
) -> None:
    danube("topic", "create", topic, "--partitions", "3")
    danube("subscription", "create", topic, "s")
    danube("produce", topic, "1", "2", "-k", "same")
    first, second = danube("subscription", "explain", topic, "s").lines
    assert first == "2 of 2 messages to do"
    assert re.fullmatch(r"partition \d, offset 0: No consumer is connected\.", second)
    danube("consume", topic, "-s", "s", "-e")
    assert danube("subscription", "explain", topic, "s").text == "Nothing to do: 2 of 2 acknowledged.\n"
    assert danube("subscription", "explain", topic, "s", "-o", "json").json["explanations"][0]["code"] is None


def test_partitions_are_read_together_or_one_of_them(danube: Danube, topic: str) -> None:
    danube("topic", "create", topic, "--partitions", "3")
    danube("produce", topic, "--value", "{n}", "--count", "300", "--key", "k{n}")
    numbers = sorted(map(str, range(1, 301)))
    assert sorted(values_of(danube, topic)) == numbers
    parts = [values_of(danube, topic, "-p", str(number)) for number in range(3)]
    assert sorted(value for part in parts for value in part) == numbers
    assert all(parts)
    assert set(values_of(danube, topic, "-p", "1", "-f", "%p")) == {"1"}
    assert sorted(values_of(danube, topic, "-s", "s")) == numbers
    assert danube("consume", topic, "--offset", "5", "-e").code == 2


def test_a_format_says_everything(danube: Danube, topic: str) -> None:
    danube("produce", topic, "-k", "key", "-H", "a=b", stdin="grüße\n".encode())
    shown = values_of(danube, topic, "-f", r"%o|%p|%t|%k|%v|%s|%h|%r|%e|%%|a\tb\\")
    assert shown == [f"0|0|/default/{topic}|key|grüße|7|a=b|0||%|a\tb\\"]
    [times] = values_of(danube, topic, "-f", "%T %a")
    assert all(time.endswith("Z") for time in times.split())


def test_a_table_shows_what_cannot_be_printed(danube: Danube, topic: str) -> None:
    danube("produce", topic, stdin=b"\x1b[31mred\xff\n" + b"y" * 1000)
    header, red, long = values_of(danube, topic, "-o", "table")
    assert header.split() == ["PARTITION", "OFFSET", "PUBLISHED", "KEY", "PAYLOAD"]
    assert red.endswith(r"\x1b[31mred\xff")
    assert long.endswith("y…")


def test_a_reader_that_went_away_ends_it_quietly(danube: Danube, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pydanube.cli.commands import consume

    def gone(self: object, messages: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(consume.Printer, "write", gone)
    danube("produce", topic, stdin=b"1\n")
    ended = danube("consume", topic, "--from", "earliest", "-s", "s")
    assert (ended.code, ended.err) == (0, "")
    backlog = danube("subscription", "describe", topic, "s", "-o", "json").json["backlog"]
    assert backlog == 1  # what was not written is not acknowledged


@given(payload=st.none() | st.binary(), key=st.none() | st.binary(max_size=20))
def test_any_bytes_survive_json(payload: bytes | None, key: bytes | None) -> None:
    fields = {**text_or_base64("value", payload), **text_or_base64("key", key)}
    given = {name: each for name, each in fields.items() if each is not msgspec.UNSET}
    assert draft_of(given) == Draft(payload, key)
    assert draft_of(msgspec.to_builtins(NewMessage(**given))) == Draft(payload, key)  # as REST has it


@given(payload=st.none() | st.binary(), key=st.none() | st.binary(max_size=20))
@pytest.mark.parametrize("name", ["payload", "value"])
def test_any_bytes_survive_json_that_names_the_encoding(name: str, payload: bytes | None, key: bytes | None) -> None:
    found = {name: payload, f"{name}_encoding": "base64", "key": key, "key_encoding": "base64"}
    line = to_json({each: b64encode(has).decode() if isinstance(has, bytes) else has for each, has in found.items()})
    for strict in (False, True):
        assert draft_of_line(line.encode(), strict=strict) == Draft(payload, key)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"value": "*", "value_encoding": "base64"}', "value is not valid Base64"),
        ('{"payload": {"a": 1}, "payload_encoding": "base64"}', "payload is not valid Base64"),
        ('{"value": "ff", "value_encoding": "hex"}', "value_encoding must be text or base64, got 'hex'"),
        ('{"value": "", "key": "", "key_encoding": ["base64"]}', "key_encoding must be text or base64"),
        ('{"value": "/w==", "payload_encoding": "base64"}', "unknown field 'payload_encoding'"),
        ('{"payload": "/w==", "value_encoding": "base64"}', "unknown field 'value_encoding'"),
        ('{"value": "/w==", "data_encoding": "base64"}', "unknown field 'data_encoding'"),
        ('{"payload": "", "value_base64": "/w=="}', "a message cannot have both payload and value_base64"),
    ],
)
def test_json_whose_bytes_cannot_be_told_is_refused(line: str, said: str) -> None:
    with pytest.raises(click.UsageError, match=re.escape(said)):
        draft_of_line(line.encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ENCODINGS = ["key_base64", "value_base64", "key_encoding", "value_encoding", "payload_encoding"]
NAMES = st.sampled_from(["key", "payload", "value", "attributes", "event_time", *ENCODINGS])


@given(st.dictionaries(NAMES, JSON | st.just("base64")))
def test_a_line_of_json_is_a_message_or_a_sentence(found: dict[str, Any]) -> None:
    try:
        draft = draft_of(json.loads(json.dumps(found)))
    except click.UsageError:
        return
    for name, text in (draft.attributes or {}).items():
        assert (name + text).encode() is not None


@given(st.text(st.characters(exclude_characters="%\\", exclude_categories=["Cs"])))
def test_what_is_no_field_of_a_format_is_printed_as_it_is(text: str) -> None:
    nobody: Any = None
    assert by_format(text)(nobody) == text.encode() + b"\n"
