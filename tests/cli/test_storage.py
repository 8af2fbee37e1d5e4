"""`danube storage` on a broker with a folder for object storage: usage, segments, verify, upload; the doctor's look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Danube
from pydanube.testing.broker import broker_thread

pytest.importorskip("opendal")


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(scope="module")
def tiered_url(objects: Path) -> Iterator[str]:
    with broker_thread(objects=f"file://{objects}") as url:
        yield url


@pytest.fixture
def tiered(run: Danube, monkeypatch: pytest.MonkeyPatch, tiered_url: str) -> Danube:
    """Runs a command against a broker with object storage."""
    monkeypatch.setenv("DANUBE_URL", tiered_url)
    return run


def test_a_topic_is_uploaded_listed_verified_and_counted(tiered: Danube, topic: str, objects: Path) -> None:
    tiered("produce", topic, stdin=b"a\nb\nc\n")
    uploaded = tiered("storage", "upload", topic)
    assert uploaded.text.startswith("uploaded 1 segment with 3 messages (")
    assert (
        tiered("storage", "upload", topic).text
        == f"nothing to upload: all of /default/{topic} is already in object storage\n"
    )
    [segment] = tiered("storage", "segments", topic, "-o", "json").json
    assert (objects / segment["segment"]).stat().st_size == segment["object_bytes"]
    assert (segment["where"], segment["first"], segment["last"]) == ("both", 0, 2)
    table = tiered("storage", "segments", topic).lines
    assert table[0].split() == ["topic", "segment", "where", "first", "last", "bytes", "object", "bytes", "newest"]
    assert segment["segment"] in table[1]
    verified = tiered("storage", "verify", topic)
    assert (verified.code, verified.err) == (0, "")
    assert verified.text.startswith(f"1 segment of /default/{topic} (")
    assert verified.text.endswith("): all intact\n")
    found = tiered("storage", "usage", topic, "-o", "json").json
    [used] = found["topics"]
    assert (used["segments"], used["object_bytes"]) == (1, segment["object_bytes"])
    assert found["status"]["objects"] == f"file://{objects}"
    assert f"tiers.object_bytes {segment['object_bytes']}" in " ".join(tiered("topic", "describe", topic).text.split())


def test_usage_has_every_topic_and_a_total(tiered: Danube, topic: str) -> None:
    tiered("produce", topic, stdin=b"a\n")
    tiered("topic", "create", f"{topic}-live", "--no-reliable")
    lines = tiered("storage", "usage").lines
    assert lines[0].split()[:2] == ["topic", "bytes"]
    assert f"/default/{topic}" in [line.split()[0] for line in lines]
    assert f"/default/{topic}-live" not in [line.split()[0] for line in lines]
    assert lines[-1].startswith("total ")
    found = tiered("storage", "usage", "--all", "-o", "json").json
    assert found["total"]["bytes"] == sum(each["bytes"] for each in found["topics"])
    assert tiered("storage", "usage", f"{topic}-live").code == 1


def test_a_list_that_is_cut_says_so(tiered: Danube, topic: str) -> None:
    for line in (b"a\n", b"b\n"):
        tiered("produce", topic, stdin=line)
        tiered("storage", "upload", topic)
    cut = tiered("storage", "segments", topic, "-n", "1")
    assert len(cut.lines) == 2
    assert "there are more than 1" in cut.err
    rest = tiered("storage", "segments", topic, "--from", "1", "-o", "json")
    assert [each["first"] for each in rest.json] == [1]


def test_lost_and_damaged_objects_are_named_and_the_command_fails(tiered: Danube, topic: str, objects: Path) -> None:
    for line in (b"a\n", b"b\n", b"c\n"):
        tiered("produce", topic, stdin=line)
        tiered("storage", "upload", topic)
    lost, damaged, _ = [each["segment"] for each in tiered("storage", "segments", topic, "-o", "json").json]
    (objects / lost).unlink()
    content = (objects / damaged).read_bytes()
    (objects / damaged).chmod(0o644)
    (objects / damaged).write_bytes(content[:-1] + b"?")
    verified = tiered("storage", "verify", topic)
    assert verified.code == 1
    assert {(line.split()[2], line.split()[3]) for line in verified.lines[1:]} == {("lost", lost), ("damaged", damaged)}
    assert f"/default/{topic}: 2 of 3 segments lost, damaged or not readable" in verified.err
    found = tiered("storage", "verify", topic, "-o", "json")
    assert found.code == 1
    assert {each["segment"] for each in found.json["troubles"]} == {lost, damaged}


def test_the_doctor_looks_at_object_storage(tiered: Danube, objects: Path) -> None:
    def finding() -> dict[str, str]:
        rows: list[dict[str, str]] = tiered("doctor", "-o", "json").json
        [found] = [each for each in rows if each["check"] == "object storage"]
        return found

    assert finding()["result"] == "ok"
    mark = objects / "_danube.json"
    content = mark.read_bytes()
    mark.rename(objects / "elsewhere")
    try:
        found = finding()
        assert (found["result"], "_danube.json is missing" in found["found"]) == ("fail", True)
        mark.write_bytes(content.replace(b"broker", b"broken"))
        assert "belongs to another broker" in finding()["found"]
    finally:
        mark.write_bytes(content)
    assert finding()["result"] == "ok"


def test_without_object_storage_upload_and_verify_say_so_and_usage_works(danube: Danube, topic: str) -> None:
    danube("produce", topic, stdin=b"a\n")
    for command in ("upload", "verify"):
        refused = danube("storage", command, topic)
        assert (refused.code, refused.text) == (1, "")
        assert "this broker has no object storage: storage.objects.url is not set" in refused.err
    [used] = danube("storage", "usage", topic, "-o", "json").json["topics"]
    assert used["local_bytes"] == used["bytes"] > 0
    assert "object storage" not in danube("doctor").text
