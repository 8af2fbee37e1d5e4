"""The public Rust and Go clients: `make test-clients` builds and runs them; what cannot be had is skipped, and why."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Timer

import pytest

from grpc_face.rig import Broker

SOURCES = Path(__file__).parent.parent / "clients"
BUILD_SECONDS = 1_500  # a first build of the Rust client takes minutes
DOWNLOAD_SECONDS = 120  # a module proxy that answers at all has answered by then
RUN_SECONDS = 120
GO_CLIENT = "github.com/danube-messaging/danube-go"
ENDS = {"stop": signal.SIGTERM, "kill": signal.SIGKILL}
BY_HAND = pytest.mark.skipif(
    "TEST_CLIENTS" not in os.environ, reason="builds a client in another language for minutes; run make test-clients"
)
IN_CI = pytest.mark.skipif(
    not {"TEST_CLIENTS", "CI"} & os.environ.keys(), reason="downloads a client; run make test-clients"
)


def attempt(command: list[str], folder: Path, language: str, seconds: int = BUILD_SECONDS) -> str:
    """Why the client cannot be had here; nothing if this went well."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed, so the {language} client is not tested"
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"the {language} client cannot be had: {' '.join(command)} took more than {seconds} s"
    if done.returncode and "Could not find `protoc`" in done.stderr:
        return f"protoc is not installed, which the {language} client is built with"
    unreachable = ("Forbidden", "not available", "no such host", "failed to download", "failed to get", "timeout")
    if done.returncode and any(word in done.stderr for word in unreachable):
        return f"the {language} client cannot be downloaded: {done.stderr.strip().splitlines()[-1].strip()}"
    assert done.returncode == 0, done.stderr[-3_000:]
    return ""


def build(command: list[str], folder: Path, language: str) -> None:
    """Or skip, and say why."""
    if reason := attempt(command, folder, language):
        pytest.skip(reason)


def run(program: Path, broker: Broker, **environment: str) -> None:
    """To its end; where it says so, the broker ends and comes back."""
    process = subprocess.Popen(
        [str(program), broker.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    alarm = Timer(RUN_SECONDS, process.kill)
    alarm.start()
    said = []
    with process.stdin, process.stdout:
        for line in process.stdout:
            said.append(line.strip())
            if said[-1] in ENDS:
                broker.end(ENDS[said[-1]])
                broker.start()
                process.stdin.write("\n")
                process.stdin.flush()
    alarm.cancel()
    assert process.wait() == 0, said
    assert said[-1] == "done"


def provide_protoc(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler that the Rust client is built with, from grpcio-tools where the machine has none."""
    if shutil.which("protoc") is None and find_spec("grpc_tools") is not None:
        protoc = folder / "protoc"
        protoc.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grpc_tools.protoc "$@"\n')
        protoc.chmod(0o755)
        monkeypatch.setenv("PROTOC", str(protoc))


@BY_HAND
@pytest.mark.timeout(BUILD_SECONDS + RUN_SECONDS)
def test_the_rust_client(own_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provide_protoc(tmp_path, monkeypatch)
    source = tmp_path / "rust"
    shutil.copytree(SOURCES / "rust", source, ignore=shutil.ignore_patterns("target"))
    target = Path(os.environ.get("CARGO_TARGET_DIR", source / "target"))
    build(["cargo", "build", "--quiet"], source, "Rust")
    run(target / "debug" / "danube-scenario", own_broker)


@IN_CI
@pytest.mark.timeout(BUILD_SECONDS + RUN_SECONDS)
def test_the_go_client(own_broker: Broker, tmp_path: Path) -> None:
    source = tmp_path / "go"
    shutil.copytree(SOURCES / "go", source)
    build(["go", "mod", "init", "scenario"], source, "Go")
    reason = attempt(["go", "get", f"{GO_CLIENT}@latest"], source, "Go", DOWNLOAD_SECONDS)
    if reason:
        copy = os.environ.get("TEST_CLIENTS_GO_SOURCE")  # a copy of its source, where the module is refused
        if copy is None:
            pytest.skip(reason)
        build(["go", "mod", "edit", f"-replace={GO_CLIENT}={Path(copy).resolve()}"], source, "Go")
    build(["go", "mod", "tidy"], source, "Go")
    build(["go", "build", "-o", "scenario", "."], source, "Go")
    # Subscribing to partitions, the client writes one map from several goroutines; on one processor they take turns.
    run(source / "scenario", own_broker, GOMAXPROCS="1")
