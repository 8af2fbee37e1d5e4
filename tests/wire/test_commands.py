"""Commands: encoded as specified, decoded again, and refused if they break a rule."""

from __future__ import annotations

import re
from pathlib import Path
from struct import pack

import pytest

from pydanube.base.errors import BrokerProtocolError, DanubeError, ProtocolError, error_table
from pydanube.base.limits import (
    ACK_RANGES_MAX,
    BATCH_BYTES_MAX,
    CONTROL_BYTES_MAX,
    HELLO_FRAME_BYTES_MAX,
    JSON_DEPTH_MAX,
    OFFSET_MAX,
    PERMITS_MAX,
    POLICY_MICROSECONDS_MAX,
    TAKEN_MESSAGES_MAX,
)
from pydanube.wire.batch import Batch
from pydanube.wire.commands import (
    Ack,
    Batches,
    Closed,
    Deliver,
    Error,
    Grant,
    Hello,
    Nack,
    Reply,
    RequestFrame,
    Welcome,
    decode,
    encode_batches,
    encode_deliver,
    encode_publish,
)
from pydanube.wire.frames import PREFACE, Frame, FrameKind, FrameReader, Side, sender_of
from wire.protocol import BATCH, COMMANDS, STAMPED, VIEW, frame_of, joined, open_reader

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = dict(
    line.split(": ") for line in (Path(__file__).parent / "golden/protocol.txt").read_text("utf-8").splitlines()
)
each_command = pytest.mark.parametrize("name", COMMANDS)


# -- encoding and decoding -------------------------------------------------------------------------------------------


@each_command
def test_a_command_comes_back_as_it_was(name: str) -> None:
    assert decode(frame_of(COMMANDS[name])) == COMMANDS[name]


@each_command
def test_a_command_is_encoded_as_in_the_golden_file(name: str) -> None:
    assert joined(COMMANDS[name].encode()).hex() == GOLDEN[name]


def test_every_kind_has_a_golden_frame_and_every_golden_frame_its_command() -> None:
    assert set(GOLDEN) == set(COMMANDS)
    assert {bytes.fromhex(digits)[4] for digits in GOLDEN.values()} == set(FrameKind)


def test_batches_are_encoded_without_a_copy() -> None:
    stamp, content = STAMPED.parts()
    for encoded in (
        encode_publish(1, 2, stamp, content),
        encode_deliver(1, 0, 1000, 1001, 0, stamp, content),
        encode_batches(1, [(stamp, content)]),
    ):
        assert encoded[-2] is stamp
        assert encoded[-1] is content


def test_parts_and_a_whole_batch_make_the_same_frame() -> None:
    assert joined(encode_publish(1, 2, *BATCH.parts())).hex() == GOLDEN["publish"]
    assert joined(encode_deliver(2, 1, 1000, 1001, 0, *STAMPED.parts())).hex() == GOLDEN["deliver"]
    assert joined(encode_batches(6, [STAMPED.parts(), STAMPED.parts()])).hex() == GOLDEN["batches"]


def test_delivered_batches_can_be_parsed() -> None:
    deliver, batches = decode(frame_of(COMMANDS["deliver"])), decode(frame_of(COMMANDS["batches"]))
    assert isinstance(deliver, Deliver)
    assert isinstance(batches, Batches)
    assert [Batch.parse(data) for data in (deliver.batch, *batches.batches)] == [STAMPED] * 3


def test_the_worked_example_of_the_document_is_what_the_code_says() -> None:
    text = (ROOT / "docs/internals/protocol.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```hex\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    said = [b""] * len(blocks)
    for at, block in enumerate(blocks):
        for row in block.splitlines():
            offset, digits, _ = row.split("|")
            assert int(offset) == len(said[at])
            said[at] += bytes.fromhex(digits)
    names = ("request", "reply", "publish", "published", "grant", "deliver", "ack", "acked")
    wanted = [PREFACE.hex() + GOLDEN["hello"], GOLDEN["welcome"], *(GOLDEN[name] for name in names)]
    assert [data.hex() for data in said] == wanted


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", error_table())
@pytest.mark.parametrize("text", ["short", "\x01" * 9000, "\U0001f30a" * 9000, "half \ud800"])
def test_every_error_fits_a_frame_before_welcome(code: str, text: str) -> None:
    error = error_table()[code](text)
    reader = FrameReader(Side.CLIENT)
    encoded = [joined(Error.of(error, 4, 5).encode()), joined(Closed.of(error).encode())]
    assert max(map(len, encoded)) <= HELLO_FRAME_BYTES_MAX
    for command in map(decode, reader.feed(b"".join(encoded))):
        assert isinstance(command, Error | Closed)
        assert (command.code, command.blame, command.retriable) == (error.code, error.blame, error.retriable)
        assert command.help == error.help


def test_an_error_keeps_the_channel_and_the_request_it_answers() -> None:
    command = Error.of(DanubeError("oh"), 4, 5)
    assert command[:4] == (4, 5, "internal", "oh")
    assert Closed.of(DanubeError("oh"), 4)[:3] == (4, "internal", "oh")


@each_command
def test_an_error_blames_the_sender(name: str) -> None:
    frame = frame_of(COMMANDS[name])._replace(body=b"\xff" * 3)
    wanted = ProtocolError if sender_of(frame.kind) is Side.CLIENT else BrokerProtocolError
    with pytest.raises(ProtocolError, match=f"^{FrameKind(frame.kind).name}: ") as caught:
        decode(frame)
    assert type(caught.value) is wanted


# -- channels and request numbers ------------------------------------------------------------------------------------

ON_A_CHANNEL = ("publish", "published", "deliver", "grant", "ack", "acked", "nack", "reset", "limit", "ack timeout")
ON_THE_CONNECTION = ("hello", "welcome", "request", "reply", "batches", "ping of the client", "pong")
ANSWERS = ("reply", "published", "acked", "batches")
WITHOUT_A_NUMBER = ("hello", "welcome", "deliver", "grant", "reset", "limit", "ack timeout", "closed")


@pytest.mark.parametrize("name", ON_A_CHANNEL)
def test_a_command_of_a_channel_names_it(name: str) -> None:
    with pytest.raises(ProtocolError):
        decode(frame_of(COMMANDS[name])._replace(channel=0))


@pytest.mark.parametrize("name", ON_THE_CONNECTION)
def test_a_command_of_the_connection_names_no_channel(name: str) -> None:
    with pytest.raises(ProtocolError):
        decode(frame_of(COMMANDS[name])._replace(channel=1))


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_names_its_request(name: str) -> None:
    with pytest.raises(ProtocolError):
        decode(frame_of(COMMANDS[name])._replace(request=0))


@pytest.mark.parametrize("name", WITHOUT_A_NUMBER)
def test_a_command_without_an_answer_has_no_request_number(name: str) -> None:
    with pytest.raises(ProtocolError):
        decode(frame_of(COMMANDS[name])._replace(request=1))


# -- binary bodies ---------------------------------------------------------------------------------------------------

FIXED = ("published", "grant", "ack", "acked", "reset", "limit", "ack timeout", "ping of the client", "pong")


@pytest.mark.parametrize("name", FIXED)
def test_a_body_of_another_size_is_refused(name: str) -> None:
    frame = frame_of(COMMANDS[name])
    for size in range(len(frame.body) + 40):
        if size != len(frame.body):
            with pytest.raises(ProtocolError):
                decode(frame._replace(body=frame.body[:size].ljust(size, b"\0")))


@pytest.mark.parametrize("name", ["ack of several", "nack without a word", "publish", "deliver", "batches"])
def test_a_shorter_body_is_refused_or_means_less(name: str) -> None:
    frame = frame_of(COMMANDS[name])
    for size in range(len(frame.body)):
        shorter = frame._replace(body=frame.body[:size])
        try:
            found = decode(shorter)
        except ProtocolError:
            continue
        assert frame_of(found) == shorter


RANGE = pack("<qq", 5, 5)
BAD_BODIES: list[tuple[FrameKind, bytes, str]] = [
    (FrameKind.PUBLISH, bytes(95), "95 bytes are too few for a batch"),
    (FrameKind.PUBLISHED, pack("<qBB", -2, 0, 0), "-2 is not a valid offset"),
    (FrameKind.PUBLISHED, pack("<qBB", OFFSET_MAX + 1, 0, 0), "is not a valid offset"),
    (FrameKind.PUBLISHED, pack("<qBB", 0, 4, 0), "unknown durability 4"),
    (FrameKind.GRANT, pack("<II", 0, 0), "permits must be 1 to .*, not 0"),
    (FrameKind.GRANT, pack("<II", PERMITS_MAX + 1, 0), "permits must be 1 to"),
    (FrameKind.ACK, pack("<qII", -1, 0, 1) + RANGE, "-1 is not a valid generation"),
    (FrameKind.ACK, pack("<qII", 1, 2, 1) + RANGE, "unknown flags 0x2"),
    (FrameKind.ACK, pack("<qII", 1, 256, 1) + RANGE, "unknown flags 0x100"),
    (FrameKind.ACK, pack("<qII", 1, 1, 2) + RANGE * 2, "must have one range, not 2"),
    (FrameKind.ACK, pack("<qII", 1, 0, 0), "ranges, not 0"),
    (FrameKind.ACK, pack("<qII", 1, 0, 2) + RANGE, "2 ranges do not fit 16 bytes"),
    (FrameKind.ACK, pack("<qII", 1, 0, 1) + RANGE * 2, "1 ranges do not fit 32 bytes"),
    (FrameKind.ACK, pack("<qII", 1, 0, ACK_RANGES_MAX + 1) + RANGE, "there must be 1 to"),
    (FrameKind.ACK, pack("<qII", 1, 0, (1 << 32) - 1) + RANGE, "there must be 1 to"),
    (FrameKind.ACK, pack("<qIIqq", 1, 0, 1, 6, 5), "6 to 5 is not a valid range"),
    (FrameKind.ACK, pack("<qIIqq", 1, 0, 1, -1, 5), "-1 to 5 is not a valid range"),
    (FrameKind.ACK, pack("<qIIqqqq", 1, 0, 2, 0, 5, 0, OFFSET_MAX + 1), f"0 to {OFFSET_MAX + 1} is not a valid range"),
    (FrameKind.NACK, pack("<qqI", -1, 0, 1) + RANGE, "-1 is not a valid generation"),
    (FrameKind.NACK, pack("<qqI", 0, -1, 1) + RANGE, "the delay is -1"),
    (FrameKind.NACK, pack("<qqI", 0, POLICY_MICROSECONDS_MAX + 1, 1) + RANGE, "the delay is"),
    (FrameKind.NACK, pack("<qqI", 0, 0, 0) + RANGE, "ranges, not 0"),
    (FrameKind.NACK, pack("<qqI", 0, 0, 2) + RANGE + b"why", "2 ranges do not fit 19 bytes"),
    (FrameKind.NACK, pack("<qqI", 0, 0, (1 << 32) - 1) + RANGE, "there must be 1 to"),
    (FrameKind.NACK, pack("<qqIqq", 0, 0, 1, 6, 5), "6 to 5 is not a valid range"),
    (FrameKind.NACK, pack("<qqI", 0, 0, 1) + RANGE + b"x" * 1001, "the reason has 1001 bytes"),
    (FrameKind.NACK, pack("<qqI", 0, 0, 1) + RANGE + b"\xff", "not UTF-8"),
    (FrameKind.RESET, pack("<q", -1), "-1 is not a valid generation"),
    (FrameKind.LIMIT, pack("<q", -2), "-2 is not a valid limit"),
    (FrameKind.LIMIT, pack("<q", BATCH_BYTES_MAX + 1), "is not a valid limit"),
    (FrameKind.ACK_TIMEOUT, pack("<q", -2), "-2 is not a valid timeout"),
    (FrameKind.ACK_TIMEOUT, pack("<q", 0), "0 is not a valid timeout"),
    (FrameKind.ACK_TIMEOUT, pack("<q", POLICY_MICROSECONDS_MAX + 1), "is not a valid timeout"),
    (FrameKind.TAKEN, bytes(11), "a body of 11 bytes"),
    (FrameKind.TAKEN, pack("<qI", -1, 1) + RANGE, "-1 is not a valid generation"),
    (FrameKind.TAKEN, pack("<qI", 0, 0), "ranges, not 0"),
    (FrameKind.TAKEN, pack("<qI", 0, 2) + RANGE, "2 ranges do not fit 16 bytes"),
    (FrameKind.TAKEN, pack("<qIqq", 0, 1, 6, 5), "6 to 5 is not a valid range"),
    (FrameKind.TAKEN, pack("<qIqq", 0, 1, 0, TAKEN_MESSAGES_MAX), "messages; the maximum is"),
    (FrameKind.TAKEN, pack("<qIqqqq", 0, 2, 0, TAKEN_MESSAGES_MAX - 1, 0, 0), "messages; the maximum is"),
    (FrameKind.RECALL, pack("<qI", -1, 1) + RANGE, "-1 is not a valid generation"),
    (FrameKind.RECALL, pack("<qIqq", 0, 1, 6, 5), "6 to 5 is not a valid range"),
    (FrameKind.DELIVER, pack("<qqqI", -1, 1000, 1001, 0) + VIEW, "-1 is not a valid generation"),
    (FrameKind.DELIVER, pack("<qqqI", 0, 999, 1001, 0) + VIEW, "offsets 999 to 1001 are not in a batch"),
    (FrameKind.DELIVER, pack("<qqqI", 0, 1000, 1002, 0) + VIEW, "offsets 1000 to 1002 are not in a batch"),
    (FrameKind.DELIVER, pack("<qqqI", 0, 1001, 1000, 0) + VIEW, "offsets 1001 to 1000 are not in a batch"),
    (FrameKind.DELIVER, pack("<qqqI", 0, 0, 0, 0) + bytes(95), "is too short for a batch"),
    (FrameKind.BATCHES, b"", "it contains no batch"),
    (FrameKind.BATCHES, b"\0\0\0", "3 extra bytes"),
    (FrameKind.BATCHES, pack("<I", 0), "a batch of 0 bytes"),
    (FrameKind.BATCHES, pack("<I", 95) + bytes(95), "a batch of 95 bytes"),
    (FrameKind.BATCHES, pack("<I", 121) + VIEW, "a batch of 121 bytes in the last 120"),
    (FrameKind.BATCHES, pack("<I", (1 << 32) - 1) + VIEW, "a batch of 4294967295 bytes"),
    (FrameKind.BATCHES, pack("<I", 119) + VIEW, "1 extra bytes"),
]


@pytest.mark.parametrize(("kind", "body", "sentence"), BAD_BODIES)
def test_a_binary_body_that_breaks_a_rule_is_refused_with_a_sentence(
    kind: FrameKind, body: bytes, sentence: str
) -> None:
    number = 1 if kind in {FrameKind.PUBLISHED, FrameKind.BATCHES} else 0
    with pytest.raises(ProtocolError, match=f"^{kind.name}: .*{sentence}"):
        decode(Frame(kind, 0 if kind == FrameKind.BATCHES else 1, number, body))


def test_a_command_that_the_other_side_would_refuse_is_not_encoded() -> None:
    many = [(0, 0)] * (ACK_RANGES_MAX + 1)
    for command in (
        Grant(1, 0),
        Grant(1, PERMITS_MAX + 1),
        Grant(1, 1, -1),
        Grant(1, 1, 1 << 32),
        Ack(1, 1, 0, []),
        Ack(1, 1, 0, many),
        Ack(1, 1, 0, [(0, 1), (3, 4)], cumulative=True),
        Nack(1, 1, 0, []),
        Nack(1, 1, 0, many),
        Nack(1, 1, 0, [(0, 0)], -1),
        Nack(1, 1, 0, [(0, 0)], POLICY_MICROSECONDS_MAX + 1),
        Nack(1, 1, 0, [(0, 0)], 0, "ü" * 501),
        RequestFrame(1, "x", {"verb": "y"}),
        Reply(1, {"a": 1 << 64}),
        Reply(1, {"a": nested(JSON_DEPTH_MAX)}),
        Reply(1, {"a": nested(100_000)}),
    ):
        with pytest.raises(ProtocolError):
            command.encode()


def test_the_maximum_number_of_ranges_can_be_sent() -> None:
    ranges = [(at * 2, at * 2) for at in range(ACK_RANGES_MAX)]
    commands = [Ack(1, 1, 0, ranges), Nack(1, 1, 0, ranges, POLICY_MICROSECONDS_MAX, "x" * 1000)]
    data = b"".join(joined(command.encode()) for command in commands)
    assert [decode(frame) for frame in open_reader(Side.BROKER).feed(data)] == commands


# -- JSON bodies -----------------------------------------------------------------------------------------------------


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


def reply(body: bytes) -> object:
    return decode(Frame(FrameKind.REPLY, 0, 1, body))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": 1,}', "not valid JSON"),
        (b'{"a": "\x01"}', "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        ("{}".encode("utf-16"), "not UTF-8"),
        ("{}".encode("utf-16-le"), "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\uDC00": 1}', "surrogate"),
        (b'{"a": 1, "a": 1}', "twice"),
        (b'{"a": {"b": 1, "\\u0062": 2}}', "twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": 18446744073709551616}', "64 bits"),
        (b'{"a": -9223372036854775809}', "64 bits"),
        (b'{"a": ' + b"9" * 60_000 + b"}", "64 bits"),
        (b'{"a": ' + b"[" * 65_000, "deep"),
        (b'{"a":' * 13_000, "deep"),
        (b'{"a": ' + b"[" * 16 + b"]" * 16 + b"}", "deep"),
        (b'{"a": "' + b'\\"' * 30_000, "not valid JSON"),
        (b"{" + b'"[' * 30_000, "deep"),
        (b'{"a": "' + b"x" * CONTROL_BYTES_MAX + b'"}', "the maximum is 65536"),
    ],
)
def test_json_that_breaks_a_rule_is_refused_with_a_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(BrokerProtocolError, match=sentence):
        reply(body)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"{}", {}),
        (b' { "a" : [ ] } ', {"a": []}),
        (b'{"a": 18446744073709551615, "b": -9223372036854775808}', {"a": (1 << 64) - 1, "b": -(1 << 63)}),
        (b'{"a": "\\ud83c\\udf0a"}', {"a": "\U0001f30a"}),
        (b'{"a": "' + b"[{" * 1000 + b'"}', {"a": "[{" * 1000}),
        (b'{"a": "\\"' + b"[" * 100 + b'"}', {"a": '"' + "[" * 100}),
        (b'{"a": [' + b"[]," * 1000 + b"[]]}", {"a": [[]] * 1001}),
        (b'{"a": ' + b"[" * 15 + b"0" + b"]" * 15 + b"}", {"a": nested(15)}),
    ],
)
def test_unusual_json_is_read(body: bytes, fields: dict[str, object]) -> None:
    assert reply(body) == Reply(1, fields)


HELLO = {"version": 1, "client": "c", "features": []}
WELCOME = {"version": 1, "broker": "b", "features": [], "frame_bytes_max": 1 << 20, "keepalive_seconds": 30}
FAILURE = {"code": "c", "message": "", "blame": "server", "retriable": False, "help": ""}
BAD_FIELDS: list[tuple[FrameKind, dict[str, object], dict[str, object], str]] = [
    (FrameKind.HELLO, HELLO, {"version": 2}, "protocol version 2 is not supported; this side speaks 1"),
    (FrameKind.HELLO, HELLO, {"version": True}, "version must be a whole number"),
    (FrameKind.HELLO, HELLO, {"version": 1.0}, "version must be a whole number"),
    (FrameKind.HELLO, HELLO, {"version": 0}, "version must be a whole number from 1 to 4294967295, got 0"),
    (FrameKind.HELLO, HELLO, {"client": ""}, "client must be a string of 1 to 255 bytes, got 0 bytes"),
    (FrameKind.HELLO, HELLO, {"client": 5}, "client must be a string"),
    (FrameKind.HELLO, HELLO, {"client": "ü" * 128}, "client must be a string of 1 to 255 bytes, got 256 bytes"),
    (FrameKind.HELLO, HELLO, {"features": {}}, "features must be a list"),
    (FrameKind.HELLO, HELLO, {"features": [1]}, "features must be a string"),
    (FrameKind.HELLO, HELLO, {"features": ["x"] * 65}, "features must have at most 64 entries, got 65"),
    (FrameKind.HELLO, HELLO, {"features": ["x" * 65]}, "features must be a string of 1 to 64 bytes, got 65 bytes"),
    (FrameKind.WELCOME, WELCOME, {"version": 3}, "protocol version 3"),
    (FrameKind.WELCOME, WELCOME, {"frame_bytes_max": 1000}, "frame_bytes_max must be"),
    (FrameKind.WELCOME, WELCOME, {"frame_bytes_max": 1 << 32}, "frame_bytes_max must be"),
    (
        FrameKind.WELCOME,
        WELCOME,
        {"keepalive_seconds": 0},
        "keepalive_seconds must be a whole number from 1 to 3600, got 0",
    ),
    (FrameKind.WELCOME, WELCOME, {"time": -1}, "time must be a whole number from 0 to"),
    (FrameKind.WELCOME, WELCOME, {"keepalive_seconds": "1"}, "keepalive_seconds must be a whole number"),
    (FrameKind.REQUEST, {"verb": "x"}, {"verb": None}, "verb must be a string"),
    (FrameKind.REQUEST, {"verb": "x"}, {"verb": ""}, "verb must be a string of 1 to 64 bytes, got 0 bytes"),
    (FrameKind.REQUEST, {"verb": "x"}, {"verb": "x" * 65}, "verb must be a string of 1 to 64 bytes, got 65 bytes"),
    (FrameKind.ERROR, FAILURE, {"blame": "you"}, "blame must be caller, server or environment, got 'you'"),
    (FrameKind.ERROR, FAILURE, {"retriable": 0}, "retriable must be true or false"),
    (FrameKind.ERROR, FAILURE, {"code": "x" * 65}, "code must be a string of 1 to 64 bytes, got 65 bytes"),
    (FrameKind.CLOSED, FAILURE, {"message": []}, "message must be a string"),
    (FrameKind.CLOSED, FAILURE, {"help": None}, "help must be a string"),
]
SAMPLES = {FrameKind.HELLO: HELLO, FrameKind.WELCOME: WELCOME, FrameKind.ERROR: FAILURE, FrameKind.CLOSED: FAILURE}


def control(kind: FrameKind, fields: dict[str, object]) -> Frame:
    return Frame(kind, 0, 0, joined(Reply(1, fields).encode())[20:])


@pytest.mark.parametrize(("kind", "good", "change", "sentence"), BAD_FIELDS)
def test_a_field_that_breaks_a_rule_is_refused_with_a_sentence(
    kind: FrameKind, good: dict[str, object], change: dict[str, object], sentence: str
) -> None:
    decode(control(kind, good))
    with pytest.raises(ProtocolError, match=f"^{kind.name}: {re.escape(sentence)}"):
        decode(control(kind, {**good, **change}))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, good in SAMPLES.items() for name in good])
def test_a_field_that_is_missing_is_named(kind: FrameKind, name: str) -> None:
    with pytest.raises(ProtocolError, match=f"{name} is missing"):
        decode(control(kind, {key: value for key, value in SAMPLES[kind].items() if key != name}))


def test_a_broker_may_send_its_time_and_address() -> None:
    said = Welcome("b", 1 << 20, 30, address="broker.example:6650", time=1_800_000_000_000_000)
    [frame] = FrameReader(Side.CLIENT).feed(b"".join(said.encode()))
    assert decode(frame) == said


def test_unknown_fields_of_newer_versions_are_ignored() -> None:
    assert decode(control(FrameKind.HELLO, {**HELLO, "mood": "good"})) == Hello("c")
    assert decode(control(FrameKind.WELCOME, {**WELCOME, "mood": "good"})) == Welcome("b", 1 << 20, 30)


def test_a_frame_of_an_unknown_kind_is_refused() -> None:
    for kind in (0, max(FrameKind) + 1, -1, 1 << 40):
        with pytest.raises(ProtocolError, match="unknown frame kind"):
            decode(Frame(kind, 0, 0, b""))
