"""`danube security` against a broker process that checks tokens, as docs/security.md shows it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Danube
from grpc_face.rig import Broker

SECRET = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("secured")
    (made / "secret").write_text(SECRET)
    return made


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[Broker]:
    made = Broker(folder, "--auth-jwt-secret-file", str(folder / "secret"), "--auth-super-admins", "root")
    made.start()
    yield made
    made.end()
    assert SECRET not in made.log()


def test_a_program_gets_what_its_binding_gives_and_nothing_else(
    broker: Broker, folder: Path, run: Danube, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DANUBE_TOKEN_FILE", raising=False)
    url, secret = f"danube://{broker.target}", str(folder / "secret")
    root, shop = folder / "root.jwt", folder / "shop.jwt"
    assert run("security", "tokens", "create", "root", "--secret-file", secret, "--out", str(root)).code == 0
    made = ("security", "tokens", "create", "shop", "--type", "service_account", "--secret-file", secret)
    created = run(*made)
    shop.write_text(created.text)
    assert stat.S_IMODE(root.stat().st_mode) == 0o600
    checked = run("security", "tokens", "validate", "-", "--secret-file", secret, "-o", "json", stdin=created.out)
    assert (checked.json["principal_type"], checked.json["principal_name"]) == ("service_account", "shop")

    assert run("context", "add", "ops", "--url", url, "--token-file", str(root)).code == 0
    assert root.read_text().strip() not in (tmp_path / "config/danube/contexts.yaml").read_text()
    give = ("security", "bindings", "put", "b", "--principal", "service_account:shop", "--role", "producer")
    assert run(*give, "--topic", "orders*").text == "service_account shop has producer for /default/orders*\n"
    assert run("topic", "create", "orders").code == 0

    monkeypatch.setenv("DANUBE_URL", url)
    refused = run("topic", "list")
    assert (refused.code, "needs a token" in refused.err) == (1, True)
    monkeypatch.setenv("DANUBE_TOKEN_FILE", str(shop))
    assert run("produce", "orders", "hello").code == 0
    assert "may not topic.read" in run("consume", "orders", "--from", "earliest", "-n", "1").err
    allowed = run("security", "can-i", "topic.publish", "orders", "-o", "json")
    assert (allowed.code, allowed.json["binding"]) == (0, "b")
    missing = run("security", "can-i", "topic.read", "orders", "-o", "json")
    assert (missing.code, missing.json["needs"]) == (1, "Consume")
    assert run("security", "whoami", "-o", "json").json["principal_name"] == "shop"
    assert "Ask an operator" in run("security", "roles", "list").err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bindings", "put", "b", "--principal", "alice", "--role", "r", "--cluster"), "write user:NAME"),
        (("bindings", "put", "b", "--principal", "user:alice", "--role", "r"), "use one of --cluster"),
        (
            ("bindings", "put", "b", "--principal", "user:a", "--role", "r", "--cluster", "--namespace", "x"),
            "use one of --cluster",
        ),
        (("tokens", "validate", "-"), "use --secret-file or --jwks"),
    ],
)
def test_what_is_missing_is_named(
    broker: Broker, run: Danube, monkeypatch: pytest.MonkeyPatch, folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    secret, root = str(folder / "secret"), folder / "named.jwt"
    root.write_text(run("security", "tokens", "create", "root", "--secret-file", secret).text)
    monkeypatch.setenv("DANUBE_URL", f"danube://{broker.target}")
    monkeypatch.setenv("DANUBE_TOKEN_FILE", str(root))
    ended = run("security", *arguments)
    assert (ended.code, said in ended.err) == (2, True), ended.err


def test_a_token_with_a_wrong_secret_is_refused_without_being_repeated(run: Danube, tmp_path: Path) -> None:
    (tmp_path / "one").write_text(SECRET)
    (tmp_path / "other").write_text(SECRET[::-1])
    token = run("security", "tokens", "create", "alice", "--secret-file", str(tmp_path / "one")).text.strip()
    (tmp_path / "t.jwt").write_text(token)
    ended = run("security", "tokens", "validate", str(tmp_path / "t.jwt"), "--secret-file", str(tmp_path / "other"))
    assert ended.code == 1
    assert "no key of this broker has signed the token" in ended.err
    assert token.split(".")[2] not in ended.err
