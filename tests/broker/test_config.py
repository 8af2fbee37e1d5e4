"""Settings: which source goes before which, and what is said about those that are wrong."""

from __future__ import annotations

import re
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.addresses import HostPort
from pydanube.base.errors import ConfigInvalid
from pydanube.base.limits import CONFIG_FILE_BYTES_MAX
from pydanube.broker.config import Loaded, load, settings

ROOT = Path(__file__).resolve().parent.parent.parent
NEEDED = {"data_dir": "data"}


def of_file(directory: Path, text: str) -> Loaded:
    file = directory / "danube.yaml"
    file.write_text(text, encoding="utf-8")
    return load(file, {}, NEEDED)


def test_a_flag_goes_before_the_environment_the_file_and_the_default(tmp_path: Path) -> None:
    file = tmp_path / "danube.yaml"
    file.write_text("data_dir: of-file\nlog_level: warning\nkeepalive_seconds: 10\nauto_create: no\n")
    environment = {"DANUBE_LOG_LEVEL": "error", "DANUBE_KEEPALIVE_SECONDS": "20"}
    config, origins = load(file, environment, {"keepalive_seconds": "40"})
    assert (config.data_dir, config.auto_create) == (Path("of-file"), False)
    assert config.log_level == "error"
    assert config.keepalive_seconds == 40
    assert config.listen == HostPort("127.0.0.1", 6650)
    assert [str(origins[key]) for key in ("data_dir", "log_level", "keepalive_seconds", "listen")] == [
        f"file {file}",
        "environment DANUBE_LOG_LEVEL",
        "flag --keepalive-seconds",
        "default",
    ]
    assert list(origins) == list(settings())


def test_sections_are_nested_in_a_file_and_have_two_underscores_in_the_environment(tmp_path: Path) -> None:
    config = of_file(
        tmp_path, "tls:\n  certificate: a.pem\n  key: b.pem\nlimits: {connections_max: 7}\njournal:\n"
    ).config
    assert (config.tls.certificate, config.tls.key, config.limits.connections_max) == (Path("a.pem"), Path("b.pem"), 7)
    assert load(None, {"DANUBE_LIMITS__CACHE_BYTES": "5"}, NEEDED).config.limits.cache_bytes == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lissten: 127.0.0.1:1", "unknown setting lissten .*did you mean listen"),
        ("limitz: {cache_bytes: 5}", "unknown setting limitz .*did you mean limits[?]"),
        ("tls: {kee: x}", "unknown setting tls.kee .*did you mean tls.key"),
        ("listen: [a, b]", "listen .*must be host:port.*got a list"),
        ("listen:", "listen .*must be host:port"),
        ("listen: 1.2.3.4", "listen .*must be host:port.*got '1.2.3.4'"),
        ("listen: ::1:6650", "listen .*must be host:port"),
        ("advertise: host:0", "advertise .*must be host:port"),
        ("auto_create: perhaps", "auto_create .*must be true or false, got 'perhaps'"),
        ("log_level: loud", "log_level .*must be one of debug, info, warning, error"),
        ("keepalive_seconds: 0", "keepalive_seconds .*must be a duration such as 30s or 1h, from 1 to 3600 seconds"),
        ("limits: {connections_max: 1.5}", "limits.connections_max .*whole number"),
        ("journal: {buffered_sync_seconds: nan}", "journal.buffered_sync_seconds .*seconds"),
        ("listen: a:1\nlisten: b:1", "'listen' is given twice"),
        ("tls.key: a\ntls: {key: b}", "tls.key is given twice"),
        ("a: &x [1]\nb: *x", "aliases are not allowed"),
        ("[" * 20_000, "not a valid configuration"),
        ("{", "not a valid configuration"),
        ("- listen", "must be a mapping"),
        ("tls: 5", "tls .*must be a mapping"),
        ("!!python/object/apply:os.getcwd []", "must be a mapping"),
        ("#" * (CONFIG_FILE_BYTES_MAX + 1), "more than"),
        ("tls: {certificate: a}", "tls.certificate is set but tls.key is not"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigInvalid, match=said):
        of_file(tmp_path, text)


def test_a_wrong_value_names_the_source_that_gave_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"listen \(environment DANUBE_LISTEN\) must be host:port"):
        load(None, {"DANUBE_LISTEN": "here"}, NEEDED)
    with pytest.raises(ConfigInvalid, match=r"listen \(flag --listen\) must be host:port"):
        load(None, {}, NEEDED | {"listen": "here"})
    with pytest.raises(ConfigInvalid, match=r"gone\.yaml cannot be read"):
        load(tmp_path / "gone.yaml", {}, NEEDED)


def test_an_unknown_variable_is_an_error_unless_it_is_for_another() -> None:
    with pytest.raises(
        ConfigInvalid, match=r"unknown setting DANUBE_LISTN \(environment\); did you mean DANUBE_LISTEN"
    ):
        load(None, {"DANUBE_LISTN": "x"}, NEEDED)
    others = (
        "DANUBE_URL",
        "DANUBE_SERVICE_HOST",
        "DANUBE_PORT",
        "DANUBE_PORT_6650_TCP_ADDR",
        "DANUBE_X_SERVICE_PORT_A",
    )
    load(None, dict.fromkeys(others, "x"), NEEDED)


def test_no_setting_looks_like_a_variable_of_kubernetes() -> None:
    for setting in settings().values():
        with pytest.raises(ConfigInvalid, match=re.escape(setting.key)):
            load(None, {setting.variable: "\0"}, {})


def test_the_data_directory_must_be_said() -> None:
    with pytest.raises(ConfigInvalid, match="--data-dir, DANUBE_DATA_DIR, or data_dir in the configuration file"):
        load(None, {}, {})


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "broker.example:1", "localhost.example:1"])
def test_beyond_loopback_it_must_be_spelled_out(listen: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"neither TLS nor authentication.*--allow-unprotected-network"):
        load(None, {}, NEEDED | {"listen": listen})
    tls = {"tls.certificate": "a", "tls.key": "b"}
    with pytest.raises(ConfigInvalid, match=r"no authentication.*--allow-unprotected-network"):
        load(None, {}, NEEDED | tls | {"listen": listen})
    allowed = NEEDED | {"listen": listen, "allow_unprotected_network": "true", "advertise": "broker.example:6650"}
    assert load(None, {}, allowed).config.advertise == HostPort("broker.example", 6650)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.1.2.3:1", "[::1]:6650", "localhost:6650"])
def test_loopback_needs_nothing(listen: str) -> None:
    assert str(load(None, {}, NEEDED | {"listen": listen}).config.listen) == listen


def test_every_address_is_none_that_clients_could_be_told() -> None:
    everywhere = NEEDED | {"listen": "0.0.0.0:6650", "allow_unprotected_network": "true"}
    with pytest.raises(ConfigInvalid, match="set advertise"):
        load(None, {}, everywhere)
    with pytest.raises(ConfigInvalid, match="no client can reach"):
        load(None, {}, everywhere | {"advertise": "[::]:6650"})


@given(st.text())
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        address = HostPort.parse(text)
    except ValueError:
        return
    assert HostPort.parse(str(address)) == address


@given(st.text(max_size=200))
def test_any_file_is_a_configuration_or_a_typed_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    try:
        of_file(tmp_path_factory.getbasetemp(), text)
    except ConfigInvalid:
        pass
    except UnicodeEncodeError:
        pass  # half a surrogate pair: no file has it


# -- sizes and durations -----------------------------------------------------------------------------------------------

LAST_WORDS = {key: key.rpartition(".")[2].split("_") for key in settings()}
SIZES = [key for key, words in LAST_WORDS.items() if "bytes" in words]
DURATIONS = [key for key, words in LAST_WORDS.items() if "seconds" in words]


def value_of(key: str, found: Loaded) -> Any:
    value: Any = found.config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def everywhere(tmp_path: Path, key: str, text: str) -> list[Loaded]:
    """Given by a file, by the environment and by a flag."""
    return [
        of_file(tmp_path, f"{key}: {text}"),
        load(None, {settings()[key].variable: text}, NEEDED),
        load(None, {}, NEEDED | {key: text}),
    ]


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize(
    ("text", "number"),
    [("70000000", 70_000_000), ("10MB", 10_000_000), ("64MiB", 64 << 20), ("64 mib", 64 << 20), ("1.5MB", 1_500_000)],
)
def test_every_size_is_bytes_or_has_a_unit(tmp_path: Path, key: str, text: str, number: int) -> None:
    assert [value_of(key, each) for each in everywhere(tmp_path, key, text)] == [number] * 3
    assert type(value_of(key, load(None, {}, NEEDED | {key: text}))) is int


@pytest.mark.parametrize("key", DURATIONS)
@pytest.mark.parametrize(
    ("text", "number"),
    [("30", 30), ("30s", 30), ("5000ms", 5), ("1m30s", 90), ("10 minutes", 600), ("0.5h", 1_800), ("1 Hour", 3_600)],
)
def test_every_duration_is_seconds_or_has_a_unit(tmp_path: Path, key: str, text: str, number: int) -> None:
    assert [value_of(key, each) for each in everywhere(tmp_path, key, text)] == [number] * 3
    assert type(value_of(key, load(None, {}, NEEDED | {key: text}))) is type(settings()[key].default)


def test_days_and_weeks_are_durations_where_they_are_not_too_long() -> None:
    given = {"storage.objects.local_seconds": "7d", "storage.objects.lag_seconds": "1 week"}
    objects = load(None, {}, NEEDED | given).config.storage.objects
    assert (objects.local_seconds, objects.lag_seconds) == (604_800, 604_800)


@pytest.mark.parametrize("key", [*SIZES, *DURATIONS])
def test_bounds_are_taken_and_what_is_beyond_them_is_refused_with_an_example_that_is_taken(key: str) -> None:
    expects = settings()[key].type.expects
    bounds = re.search(r"from (\S+) to (\S+) (?:bytes|seconds)", expects)
    example = re.search(r"such as (\S+?)[, ]", expects)
    assert bounds is not None
    assert example is not None
    for text in (*bounds.groups(), example[1]):
        load(None, {}, NEEDED | {key: text})
    beyond = str(int(bounds[2]) + 1)
    for text in (beyond, "-1", "", "soon", "1e3", "10M" if key in SIZES else "1 month"):
        with pytest.raises(ConfigInvalid) as refused:
            load(None, {}, NEEDED | {key: text})
        assert str(refused.value) == f"{key} (flag {settings()[key].flag}) must be {expects}, got {text!r}"


def test_a_number_of_whole_seconds_is_not_rounded() -> None:
    with pytest.raises(ConfigInvalid, match=r"keepalive_seconds .*in whole seconds, got '1500ms'"):
        load(None, {}, NEEDED | {"keepalive_seconds": "1500ms"})


def test_no_setting_has_a_size_or_a_duration_in_another_unit() -> None:
    others = {
        "ms",
        "us",
        "millis",
        "minutes",
        "hours",
        "days",
        "kb",
        "mb",
        "gb",
        "kib",
        "mib",
        "gib",
        "size",
        "timeout",
    }
    assert [key for key, words in LAST_WORDS.items() if others & set(words)] == []


def test_the_page_lists_every_setting() -> None:
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    rows = []
    for setting in settings().values():
        default = "must be given" if setting.default is MISSING else str(setting.default)
        default = default.lower() if setting.default in (None, True, False) and default.isalpha() else default
        rows.append(f"| `{setting.key}` | {setting.type.expects} | {default} | {setting.doc} |")
    assert "\n".join(rows) in page, "\n".join(rows)
