"""`danube context`, `config`, `doctor`: what is saved, what is in force, and what is wrong with this machine."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.conftest import Danube
from pydanube.base.errors import ConnectionLost
from pydanube.cli.commands import doctor
from pydanube.cli.shell.contexts import Contexts, contexts_file
from pydanube.operations.sinks import Sink
from pydanube.testing.broker import broker_thread
from pydanube.testing.clock import VirtualClock


def test_a_saved_context_says_where(run: Danube, url: str) -> None:
    assert run("context", "show", "-o", "json").json["origin"] == "default"
    assert run("context", "add", "here", "--url", url).code == 0
    assert run("context", "add", "there", "--url", "danube://127.0.0.1:1", "--ca-file", "ca.pem").code == 0
    assert run("namespace", "list").code == 0  # the first one is in use
    assert run("namespace", "list", "--context", "there").code == 4
    assert run("context", "use", "there").code == 0
    assert run("namespace", "list").code == 4
    shown = run("context", "show", "-o", "json").json
    assert (shown["url"], shown["origin"]) == ("danube://127.0.0.1:1", "context there")
    assert shown["ca_file"] == str(Path.cwd() / "ca.pem")
    assert [row["current"] for row in run("context", "list", "-o", "json").json] == [False, True]
    assert run("context", "delete", "there", "--dry-run").text.startswith("would delete")
    assert run("context", "delete", "there", "--yes").code == 0
    assert run("context", "show", "-o", "json").json["origin"] == "default"
    assert run("context", "use", "there").code == 3


def test_the_environment_goes_before_the_context_in_use_and_behind_one_that_is_named(
    run: Danube, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("context", "add", "nowhere", "--url", "danube://127.0.0.1:1")
    monkeypatch.setenv("DANUBE_URL", url)
    assert run("namespace", "list").code == 0
    assert run("namespace", "list", "--context", "nowhere").code == 4


def test_the_file_of_contexts_is_its_owner_s_and_written_as_a_whole(
    run: Danube, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("context", "add", "one", "--url", "danube://one")
    file = contexts_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert run("context", "add", "two", "--url", "danube://two").code == 1
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["contexts.yaml"]


@pytest.mark.parametrize("content", ["[1]", "{", "contexts: {a: {colour: red}}", "contexts: 3", "\0"])
def test_a_spoilt_file_of_contexts_is_named(run: Danube, content: str) -> None:
    contexts_file().parent.mkdir(parents=True)
    contexts_file().write_text(content)
    ended = run("namespace", "list")
    assert ended.code == 1
    assert "contexts.yaml cannot be read" in ended.err
    assert run("--url", "danube://127.0.0.1:1", "namespace", "list").code == 4  # it is not even looked at


def test_a_context_that_leads_nowhere_is_not_saved(run: Danube) -> None:
    assert run("context", "add", "x", "--url", "http://x").code == 2
    assert run("context", "add", "a\nb", "--url", "danube://x").code == 2
    assert Contexts.load().saved == {}


def test_config_show_says_each_value_and_its_source(
    run: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "danube.yaml").write_text("data_dir: here\nlimits: {cache_bytes: 1000}\n")
    monkeypatch.setenv("DANUBE_LOG_LEVEL", "debug")
    shown = run("config", "show", "--config", str(tmp_path / "danube.yaml"), "--no-auto-create", "-o", "json").json
    found = {row["setting"]: (row["value"], row["source"]) for row in shown}
    assert found["data_dir"] == ("here", "file")
    assert found["limits.cache_bytes"] == (1000, "file")
    assert found["log_level"] == ("debug", "environment")
    assert found["auto_create"] == (False, "flag")
    assert found["listen"] == ("127.0.0.1:6650", "default")
    assert run("config", "show", "--listen", "nowhere").code == 2  # as the broker would say


def test_config_show_has_sizes_and_durations_in_the_unit_of_the_setting(run: Danube) -> None:
    flags = ["--limits-cache-bytes", "64MiB", "--keepalive-seconds", "1m", "--journal-buffered-sync-seconds", "250ms"]
    shown = {row["setting"]: row["value"] for row in run("config", "show", *flags, "-o", "json").json}
    assert (shown["limits.cache_bytes"], shown["keepalive_seconds"]) == (64 << 20, 60)
    assert shown["journal.buffered_sync_seconds"] == 0.25
    refused = run("config", "show", "--limits-cache-bytes", "64M")
    assert refused.code == 2
    assert "limits.cache_bytes (flag --limits-cache-bytes) must be a size such as 64MiB" in refused.err


def test_config_show_without_a_broker_says_what_must_be_given(run: Danube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_URL", "danube://127.0.0.1:1")
    ended = run("config", "show", "-o", "json")
    assert (ended.code, ended.json[0]["setting"]) == (0, "data_dir")
    assert (ended.json[0]["value"], ended.json[0]["source"]) == (None, "must be given")
    assert "no broker at danube://127.0.0.1:1; these are the settings that one would start with" in ended.err
    refused = run("config", "show", "--url", "danube://127.0.0.1:1")
    assert (refused.code, ConnectionLost.command_help in refused.err) == (4, True)


def test_config_show_says_what_is_in_force_at_the_broker(
    danube: Danube, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANUBE_AUTO_CREATE", "false")  # which is the caller's
    ended = danube("config", "show", "-o", "json")
    assert (ended.code, ended.err) == (0, f"danube: in force at {url}\n")
    found = {row["setting"]: row["value"] for row in ended.json}
    assert found["listen"] == url.removeprefix("danube://")
    assert found["auto_create"] is True
    assert found["journal.buffered_sync_seconds"] > 0
    assert danube("config", "show", "--data-dir", "x", "-o", "json").json[0]["value"] == "x"


def findings(run: Danube, *options: str) -> tuple[int, dict[str, str]]:
    ended = run("doctor", *options, "-o", "json")
    return ended.code, {row["check"]: row["result"] for row in ended.json}


def test_doctor_finds_a_sound_machine_sound(danube: Danube, tmp_path: Path) -> None:
    code, found = findings(danube, "--data-dir", str(tmp_path / "not-made-yet"))
    assert code == 0
    assert {"python", "uvloop", "pyarrow", "open files", "clock", "disk space", "disk sync"} <= set(found)
    assert found["broker"] == "ok"
    assert "broker clock" not in found
    assert list(tmp_path.glob("not-made-yet")) == []


@pytest.mark.slow
def test_doctor_says_what_is_wrong_and_what_to_do(run: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    assert findings(run, "--data-dir", str(tmp_path / "file"))[1]["disk"] == "fail"
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    monkeypatch.setattr(doctor, "FREE_BYTES_FAIL", 1 << 60)
    monkeypatch.setattr(doctor, "FREE_BYTES_WARN", 1 << 60)
    monkeypatch.setattr(doctor, "SYNC_SECONDS_WARN", 0.0)
    monkeypatch.setattr(doctor, "__version__", "9.9")
    (tmp_path / "data").mkdir()
    os.utime(tmp_path / "data", (1, 1))
    (tmp_path / "data" / "future").touch()
    os.utime(tmp_path / "data" / "future", (1e11, 1e11))
    ended = run("doctor", "--data-dir", str(tmp_path / "data"), "--url", "danube://127.0.0.1:1", "-o", "json")
    assert ended.code == 1
    rows = {row["check"]: row for row in ended.json}
    assert {name: row["result"] for name, row in rows.items() if row["result"] != "ok"} == {
        "open files": "fail",
        "clock": "fail",
        "disk space": "fail",
        "disk sync": "warn",
        "broker": "warn",
    }
    assert all(row["advice"].endswith(".") for row in rows.values() if row["result"] != "ok")


def test_doctor_tells_a_broker_of_another_version(danube: Danube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "__version__", "9.9")
    assert findings(danube)[1]["broker version"] == "warn"


def test_doctor_warns_of_a_broker_with_many_ledgers(danube: Danube, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ledgers" not in findings(danube)[1]
    monkeypatch.setattr(doctor, "NODE_LEDGERS_WARN", 0)
    assert findings(danube)[1]["ledgers"] == "warn"


def test_doctor_compares_the_broker_s_clock_with_its_own(run: Danube) -> None:
    with broker_thread(clock=VirtualClock(wall=1_800_000_000_000_000)) as url:
        assert findings(run, "--url", url)[1]["broker clock"] == "warn"


def test_doctor_finds_a_stranger_at_the_port(run: Danube) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=5) as stranger:
        stranger.settimeout(5)
        from threading import Thread

        def hang_up() -> None:
            for _ in range(2):
                stranger.accept()[0].close()

        thread = Thread(target=hang_up)
        thread.start()
        code, found = findings(run, "--url", f"danube://127.0.0.1:{stranger.getsockname()[1]}")
        thread.join()
    assert (code, found["broker"]) == (1, "fail")


def test_doctor_reports_writers_that_are_blocked() -> None:
    async def sinks() -> list[Sink]:
        batch = {"query": "q", "target": "/default/t", "name": "", "batch": 7, "run": "", "source": ""}
        errors = (None, "batch 7 is decided but cannot be written: no room")
        return [Sink(**batch, committed=False, error=error, writer="w") for error in errors]

    [found] = asyncio.run(doctor._sinks(SimpleNamespace(admin=SimpleNamespace(sinks=sinks))))  # type: ignore[arg-type]
    assert (found.result, found.found) == ("fail", "batch 7 is decided but cannot be written: no room")
    assert "danube sink forget --abandon" in found.advice
