"""S13: secrets that somebody put where they do not belong are shown nowhere."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path

import pytest

from cli.conftest import Danube
from pydanube.access.principals import ANONYMOUS
from pydanube.api.server import Server, StandaloneSettings, load
from pydanube.base.redaction import HIDDEN, is_secret, redacted, redacted_options
from pydanube.broker.door.session import Origin
from pydanube.cli.commands.standalone import _Formatter
from pydanube.cli.shell.contexts import contexts_file
from pydanube.operations.broker import GetSettings

SECRET = "TOPSECRET"
DOCTOR = pytest.param(["doctor"], marks=pytest.mark.slow)  # asks Java and Python for their versions
OPTIONS = "--storage-objects-options"


@pytest.mark.parametrize(
    "flags",
    [
        ["--objects", f"s3://AKIA:{SECRET}@bucket/x"],
        ["--objects", f"s3://AKIA:{SECRET}/{SECRET}@bucket/x"],
        ["--objects", f"s3://bucket/x?secret_access_key={SECRET}&region=eu"],
        ["--objects", f"{SECRET}://bucket\0"],
        ["--objects", f"s3:AKIA:{SECRET}@bucket/x"],
        ["--objects", f"AKIA:{SECRET}@bucket"],
        ["--objects", SECRET],
        ["--objects", f"s3://bucket {SECRET}"],
        ["--objects", f"s3://AKIA:{SECRET}/bucket"],
        ["--objects", f"s3://bucket/x#{SECRET}"],
        [OPTIONS, f"endpoint=me:{SECRET}@host"],
        [OPTIONS, f"secret_access_key={SECRET}"],
        [OPTIONS, f"secret_access_key:{SECRET}"],
        [OPTIONS, f"region=eu,session_token={SECRET},endpoint=https://a:{SECRET}@b"],
        [OPTIONS, "region=eu", f"secret_access_key={SECRET}"],
        [f"--storage-objects-option=secret_access_key={SECRET}"],
        ["--url", f"danube://me:{SECRET}@127.0.0.1:1"],
        ["--url", f"me:{SECRET}@127.0.0.1:1"],
        ["--url", f"danube://127.0.0.1:1?token={SECRET}"],
    ],
)
@pytest.mark.parametrize("command", [["config", "show"], ["config", "show", "-o", "json"], DOCTOR, ["standalone"]])
def test_a_command_never_shows_a_secret_that_it_was_given(
    run: Danube, tmp_path: Path, command: list[str], flags: list[str]
) -> None:
    ended = run(*command, "--data-dir", str(tmp_path / "data") + ("\0" if command == ["standalone"] else ""), *flags)
    assert SECRET not in ended.text + ended.err
    assert command[0] != "standalone" or ended.code == 2


@pytest.mark.parametrize(
    "text",
    [
        f"storage:\n  objects:\n    url: s3://a:{SECRET}@bucket\n",
        f"storage:\n  objects:\n    options:\n      secret_access_key: {SECRET}\n",
        f"storage:\n  objects:\n    options: secret_access_key:{SECRET}\n",
        f"storage:\n  objects:\n    options: [{SECRET}\n",
        f'storage: {{objects: {{options: {{secret_access_key: "{SECRET}}}}}}}\n',
        f"storage:\n  objects:\n    options:\n      a: b\n   secret_access_key: {SECRET}\n",
    ],
)
def test_a_file_with_secrets_is_shown_and_refused_without_them(run: Danube, tmp_path: Path, text: str) -> None:
    file = tmp_path / "danube.yaml"
    file.write_text(text)
    for command in (["config", "show"], ["config", "show", "-o", "yaml"]):
        ended = run(*command, "--config", str(file), "--data-dir", str(tmp_path / "data"))
        assert SECRET not in ended.text + ended.err
        assert ended.text or ended.err


def test_what_is_not_secret_is_shown(run: Danube, tmp_path: Path) -> None:
    flags = [
        "--objects",
        "s3://bucket/prefix",
        OPTIONS,
        "region=eu,endpoint=https://host:9000,credential_path=/run/key",
    ]
    shown = {row["setting"]: row["value"] for row in run("config", "show", "-o", "json", *flags).json}
    assert shown["storage.objects.url"] == "s3://bucket/prefix"
    assert shown["storage.objects.options.region"] == "eu"
    assert shown["storage.objects.options.endpoint"] == "https://host:9000"
    assert shown["storage.objects.options.credential_path"] == "/run/key"


def test_a_running_broker_shows_no_secret_among_its_settings_and_metrics(tmp_path: Path) -> None:
    options = f"secret_access_key={SECRET},region=eu"

    async def story() -> None:
        loaded = load(None, {}, {"data_dir": str(tmp_path), "storage.objects.options": options})
        server = Server(StandaloneSettings(tmp_path, port=0), loaded=loaded)
        await server.start()
        try:
            session = server._broker.door.session(ANONYMOUS, Origin("test"))
            told = str(await session.carry_out(GetSettings()))
            assert SECRET not in told
            assert SECRET not in (await session.broker.metrics()).decode()
            assert HIDDEN in told
        finally:
            await server.stop()

    asyncio.run(story())


def test_log_lines_lose_their_secrets_with_tracebacks_too() -> None:
    try:
        raise ValueError(f"PUT https://u:{SECRET}@host/x?X-Amz-Signature={SECRET} failed")
    except ValueError as error:
        told = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "aws_session_token=%s", (SECRET,), told)
    assert SECRET not in _Formatter("%(message)s").format(record)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "danube serves on danube://127.0.0.1:6650, data in /x",
            "danube serves on danube://127.0.0.1:6650, data in /x",
        ),
        ("https://u:p@h/x?a=b, then", f"https://{HIDDEN}@h/x?{HIDDEN} then"),
        ("secret_access_key=abc region=eu", f"secret_access_key={HIDDEN} region=eu"),
        ('{"password": "a b", "user": "me"}', f'{{"password": {HIDDEN}, "user": "me"}}'),
        ("credential_path=/run/key", "credential_path=/run/key"),
        ("a topic with key=value and keys", "a topic with key=value and keys"),
    ],
)
def test_a_text_keeps_what_is_not_secret(text: str, expected: str) -> None:
    assert redacted(text) == expected


def test_options_are_judged_by_their_names() -> None:
    given = {"secret_access_key": "a", "region": "b", "Token": "c", "credential_path": "d"}
    assert redacted_options(given) == {**given, "secret_access_key": HIDDEN, "Token": HIDDEN}
    misspelt = dict.fromkeys(["pasword", "secrt", "sas_url", "tokn", "accountkey", "disable_token"], "x")
    assert redacted_options(misspelt) == dict.fromkeys(misspelt, HIDDEN)
    harmless = dict.fromkeys(
        ["endpoint", "bucket", "root", "enable_versioning", "batch_max_operations", "username"], "x"
    )
    assert redacted_options(harmless) == harmless
    assert is_secret("session_token")
    assert not is_secret("credential_path")


@pytest.mark.parametrize("url", [f"danube://me:{SECRET}@127.0.0.1:1", f"danube://127.0.0.1:1?x={SECRET}"])
@pytest.mark.parametrize(
    "command",
    [
        ["context", "list"],
        ["context", "list", "-o", "json"],
        ["context", "use", "saved"],
        ["context", "show"],
        ["context", "delete", "saved", "--dry-run"],
        ["context", "add", "saved", "--url", "URL"],
        DOCTOR,
        ["config", "show"],
        ["topic", "list"],
    ],
)
def test_a_saved_or_inherited_address_is_shown_without_its_secret(
    run: Danube, monkeypatch: pytest.MonkeyPatch, command: list[str], url: str
) -> None:
    contexts_file().parent.mkdir(parents=True, exist_ok=True)
    contexts_file().write_text(json.dumps({"current": "saved", "contexts": {"saved": {"url": url}}}))
    command = [url if each == "URL" else each for each in command]
    ended = run(*command)
    assert SECRET not in ended.text + ended.err
    monkeypatch.setenv("DANUBE_URL", url)
    ended = run(*command)
    assert SECRET not in ended.text + ended.err


# -- files of others ---------------------------------------------------------------------------------------------------


def test_an_export_touches_nothing_but_its_own_file(danube: Danube, topic: str, tmp_path: Path) -> None:
    danube("produce", topic, "--value", "v", "-n", "3")
    file, part, victim = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part", tmp_path / "victim"
    victim.write_text("precious")
    part.symlink_to(victim)
    assert danube("export", topic, str(file)).code == 0
    assert victim.read_text() == "precious"
    assert part.is_symlink()
    assert sorted(tmp_path.glob("*.jsonl*")) == [file, part]
    assert not list(tmp_path.glob(".*"))
    mask = os.umask(0)
    os.umask(mask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask


def test_an_export_that_fails_leaves_nothing(danube: Danube, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "out" / "x.parquet"
    assert danube("export", topic, str(file)).code != 0
    assert not list(tmp_path.glob("**/*.part"))
