"""A checkpoint and a power cut: what is synced before what, and what is taken away afterwards."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from pydanube.spark import durable
from pydanube.spark.durable import MARK, repair_checkpoint, sync_checkpoint


class Power:
    """A checkpoint as Spark writes it, and a machine that can lose its power: then all that was not synced is torn."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.synced: dict[Path, bytes] = {}
        self.boot = 1
        by_handle: dict[int, Path] = {}
        opened, sync = os.open, os.fsync

        def watched(name: str | Path, flags: int, *more: int, **others: int) -> int:
            handle = opened(name, flags, *more, **others)
            by_handle[handle] = Path(name)
            return handle

        def synced(handle: int) -> None:
            file = by_handle.get(handle)
            if file is not None and file.is_file():
                self.synced[file] = file.read_bytes()
            sync(handle)

        monkeypatch.setattr(os, "open", watched)
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(durable, "CLOCK_NANOSECONDS", 0)
        monkeypatch.setattr(durable, "_boot", lambda: f"boot {self.boot}")

    def write(self, name: str, text: str = "v1\n{}") -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        (file.parent / f".{file.name}.crc").write_text("crc")

    def plan(self, batch: int) -> None:
        if not batch:
            self.write("metadata", '{"id": "q"}')
        self.write(f"sources/0/{batch}", f"files of {batch}")  # which a source of files has read, before the offsets
        self.write(f"offsets/{batch}")
        sync_checkpoint(str(self.path))

    def end(self, batch: int) -> None:
        """The state of the batch, and then that it is done."""
        self.write(f"state/0/0/{batch + 1}.changelog", f"state {batch + 1}")
        self.write(f"commits/{batch}")

    def cut(self) -> None:
        self.boot += 1
        for file in self.path.rglob("*"):
            if file.is_file() and file.name != MARK and self.synced.get(file) != file.read_bytes():
                file.write_bytes(b"")

    def found(self, folder: str) -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in (self.path / folder).rglob("*") if each.is_file()}


@pytest.fixture
def power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Power:
    return Power(tmp_path / "checkpoint", monkeypatch)


@pytest.mark.parametrize("cut", ["planned", "before the next", "next planned"])
def test_after_a_power_cut_there_is_only_what_is_whole_and_the_batch_that_was_written_can_come_again(
    power: Power, cut: str
) -> None:
    power.plan(0)
    power.end(0)
    power.plan(1)
    if cut != "planned":
        power.end(1)
    if cut == "next planned":
        power.write("sources/0/2")
        power.write("offsets/2")  # and the power goes before it is settled
    power.cut()
    again = repair_checkpoint(str(power.path))
    assert again == ([] if cut == "planned" else [1])
    assert sorted(power.found("offsets")) == [".0.crc", ".1.crc", "0", "1"]
    assert sorted(power.found("commits")) == [".0.crc", "0"], "batch 1 is repeated, for its state may be lost"
    assert power.found("state")["1.changelog"] == b"state 1"
    assert sorted(power.found("sources")) == [".0.crc", ".1.crc", "0", "1"], "or its files would look new, or be lost"
    for folder in ("offsets", "commits", "state", "sources"):
        assert b"" not in power.found(folder).values(), "nothing that is torn is left"


def test_what_is_done_is_settled_before_its_messages_are_given_up(power: Power) -> None:
    power.plan(0)
    power.end(0)
    sync_checkpoint(str(power.path))  # as the source does it, when it is told where the next batch begins
    power.cut()
    assert repair_checkpoint(str(power.path)) == []
    assert sorted(power.found("commits")) == [".0.crc", "0"]
    assert power.found("state")["1.changelog"] == b"state 1"


def test_state_that_was_settled_as_soon_as_it_was_written_stays(power: Power, monkeypatch: pytest.MonkeyPatch) -> None:
    """The times of files are coarse, so what is new is synced once more; that does not make it unsure."""
    monkeypatch.setattr(durable, "CLOCK_NANOSECONDS", 10**12)
    power.plan(0)
    power.end(0)
    power.plan(1)
    power.write("state/0/0/2.changelog", "of a batch that is not done")
    power.cut()
    assert repair_checkpoint(str(power.path)) == []
    assert power.found("state")["1.changelog"] == b"state 1"
    assert "2.changelog" not in power.found("state")


def test_a_process_that_was_only_killed_loses_nothing(power: Power) -> None:
    power.plan(0)
    power.end(0)
    assert repair_checkpoint(str(power.path)) == []
    assert sorted(power.found("commits")) == [".0.crc", "0"]


@pytest.mark.parametrize("times", [True, False])
def test_a_checkpoint_that_was_copied_to_another_machine_keeps_its_state_and_what_its_files_source_has_read(
    power: Power, tmp_path: Path, caplog: pytest.LogCaptureFixture, times: bool
) -> None:
    power.plan(0)
    power.end(0)
    power.plan(1)
    copy = shutil.copytree(power.path, tmp_path / "copy", copy_function=shutil.copy2 if times else shutil.copyfile)
    kept = {folder: power.found(folder) for folder in ("sources", "state", "offsets", "commits")}
    power.boot, power.path = power.boot + 1, copy
    assert repair_checkpoint(str(copy)) == []
    assert {folder: power.found(folder) for folder in kept} == kept
    assert ("was copied without the times of its files" in caplog.text) is not times
    power.end(1)
    power.plan(2)  # from here on its times are its own
    power.write("state/0/0/3.changelog", "of a batch that is not done")
    power.cut()
    assert repair_checkpoint(str(copy)) == []
    assert "3.changelog" not in power.found("state")
    assert power.found("state")["2.changelog"] == b"state 2"


def test_a_checkpoint_that_was_torn_before_anything_was_written_begins_anew(power: Power) -> None:
    power.write("metadata", "")
    power.write("offsets/0", "")
    assert repair_checkpoint(str(power.path)) == []
    assert not power.path.exists()


def test_a_place_that_is_no_folder_and_one_that_is_not_there_are_left_alone(tmp_path: Path) -> None:
    sync_checkpoint("s3a://bucket/points")
    sync_checkpoint(None)
    assert repair_checkpoint("s3a://bucket/points") == repair_checkpoint(str(tmp_path / "nowhere")) == []


def test_nothing_new_is_not_synced_again(power: Power) -> None:
    power.plan(0)
    before = json.loads((power.path / MARK).read_text())
    power.synced.clear()
    sync_checkpoint(str(power.path))
    assert (json.loads((power.path / MARK).read_text()), power.synced) == (before, {})
