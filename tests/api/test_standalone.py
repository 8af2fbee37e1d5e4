"""`danube standalone` as a process and as a command: what it is told, what it says, how it stops."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from urllib.request import urlopen

import pytest

import pydanube
from api.frame_client import close_all
from certificates import Authority
from pydanube.api import server as server_module
from pydanube.api.server import Server, StandaloneSettings, write_ready_file
from pydanube.base.addresses import HostPort
from pydanube.base.limits import MIB
from pydanube.broker.configured import standalone_settings
from pydanube.broker.standalone import Broker
from pydanube.cli.main import main
from pydanube.storage.node.settings import NodeSettings

COMMAND = [sys.executable, "-m", "pydanube.cli.main", "standalone"]


class Process:
    def __init__(self, directory: Path, *flags: str, environment: dict[str, str] | None = None) -> None:
        self._ready = directory / "ready"
        listen = ["--listen", "127.0.0.1:0", "--admin-listen", ""]
        command = [*COMMAND, *listen, "--ready-file", str(self._ready), *flags]
        self.process = subprocess.Popen(command, env=os.environ | (environment or {}), stderr=subprocess.PIPE)

    def address(self) -> str:
        deadline = monotonic() + 20
        while not self._ready.exists():
            assert self.process.poll() is None
            assert monotonic() < deadline
            sleep(0.01)  # another process writes it
        found = json.loads(self._ready.read_text())
        assert found == {"listen": found["listen"], "admin_listen": None, "pid": self.process.pid}
        return str(found["listen"])

    def stop(self) -> tuple[float, bytes]:
        """Seconds it took, and what it logged."""
        began = monotonic()
        self.process.send_signal(signal.SIGTERM)
        _, logged = self.process.communicate(timeout=10)
        assert self.process.returncode == 0, logged
        return monotonic() - began, logged


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        if each.process.stderr is not None and not each.process.stderr.closed:
            each.process.communicate()


def test_a_process_takes_file_environment_and_flags_and_stops_in_time(tmp_path: Path, processes: list[Process]) -> None:
    config = tmp_path / "danube.yaml"
    config.write_text(f"data_dir: {tmp_path / 'data'}\nauto_create: false\njournal: {{file_bytes: 4194304}}\n")
    processes.append(
        Process(tmp_path, "--config", str(config), environment={"DANUBE_ADVERTISE": "broker.example:7000"})
    )
    url = f"danube://{processes[0].address()}"

    async def story() -> None:
        async with pydanube.connect(url) as client:
            connection = await client.connection()
            assert connection.welcome is not None
            assert connection.welcome.address == "broker.example:7000"
            with pytest.raises(pydanube.base.errors.TopicNotFound):
                await client.producer("/default/orders").open()
            await client.admin.create_topic("/default/orders")

    asyncio.run(story())
    with urlopen(f"{url.replace('danube', 'http', 1)}/api/v1/config") as answer:
        origins = json.load(answer)["origins"]
    assert origins["advertise"] == {"source": "environment", "name": "DANUBE_ADVERTISE"}
    assert origins["auto_create"] == {"source": "file", "name": str(config)}
    seconds, logged = processes[0].stop()
    assert seconds < 5
    assert b"danube is stopping" in logged


def test_a_hangup_reloads_the_certificate(tmp_path: Path, processes: list[Process]) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = authority.sign()
    flags = ["--data-dir", str(tmp_path / "data"), "--journal-file-bytes", str(4 * MIB)]
    processes.append(Process(tmp_path, *flags, "--tls-certificate", str(certificate), "--tls-key", str(key)))
    url = f"danubes://{processes[0].address()}"

    async def trusted(ca: Path) -> bool:
        try:
            async with pydanube.connect(url, ca_file=str(ca)):
                return True
        except pydanube.base.errors.TlsFailed:
            return False

    assert asyncio.run(trusted(authority.file))
    other.sign()
    processes[0].process.send_signal(signal.SIGHUP)
    deadline = monotonic() + 4  # before it would have looked by itself
    while not asyncio.run(trusted(other.file)):
        assert monotonic() < deadline
    assert not asyncio.run(trusted(authority.file))
    processes[0].stop()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--lisen", "127.0.0.1:1"], "unknown option --lisen; did you mean --listen?"),
        (["--allow"], "unknown option --allow"),
        (["--listen", "somewhere"], "listen (flag --listen) must be host:port"),
        (["--listen", "0.0.0.0:0"], "--allow-unprotected-network"),
        (["--listen", "0.0.0.0:0", "--allow-unprotected-network"], "set advertise"),
        (["--tls-certificate", __file__, "--tls-key", "gone"], "tls.key is gone, which cannot be read: No such file"),
        (["--config", "gone.yaml"], "gone.yaml cannot be read"),
    ],
)
def test_what_is_wrong_ends_it_before_anything_is_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server_module, "raise_file_limit", lambda: 1 << 20)  # not of the process that tests
    assert main(["standalone", "--data-dir", "data", *flags]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", ["--listen", "--admin-listen"])
def test_a_port_that_is_taken_is_named_with_its_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.setattr(server_module, "raise_file_limit", lambda: 1 << 20)
    addresses = {"--listen": "127.0.0.1:0", "--admin-listen": "127.0.0.1:0"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses[flag] = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = [part for each in addresses.items() for part in each]
        assert main(["standalone", "--data-dir", str(tmp_path), "--log-level", "error", *flags]) == 2
    said = f"{addresses[flag]} is already in use by another program; choose another {flag} "
    assert said in capsys.readouterr().err


def test_a_stop_that_does_not_come_to_its_end_is_ended(tmp_path: Path) -> None:
    hang = """
import asyncio, sys
from pydanube.api import server
from pydanube.cli.main import main
async def never(self): await asyncio.sleep(100)
server.STOP_SECONDS, server.Server.stop = 1, never
main(sys.argv[1:])
"""
    ready = tmp_path / "ready"
    flags = ["--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--admin-listen", ""]
    command = [sys.executable, "-c", hang, "standalone", *flags, "--ready-file", str(ready)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "is listening on" in line:
                process.send_signal(signal.SIGTERM)
                break
        said = process.stderr.read()
    assert process.returncode == server_module.UNCLEAN
    assert "did not stop within 1 s of the signal" in said


def test_every_setting_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["standalone", "--help"]) == 0
    shown = capsys.readouterr().out
    for setting in server_module.settings().values():
        assert setting.flag in shown


def test_the_ready_file_writes_ipv6_in_brackets(tmp_path: Path) -> None:
    write_ready_file(tmp_path / "ready", HostPort("::1", 6650), HostPort("::1", 50051))
    ready = {"listen": "[::1]:6650", "admin_listen": "[::1]:50051", "pid": os.getpid()}
    assert json.loads((tmp_path / "ready").read_text()) == ready
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]


def test_a_broker_that_cannot_serve_leaves_no_listener_and_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = StandaloneSettings(tmp_path, port=0, node=NodeSettings(file_bytes=4 * MIB))

    async def life() -> None:
        failing = Server(settings)
        with monkeypatch.context() as patch:
            patch.setattr(Broker, "serve", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await failing.start()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*failing.address)
        again = Server(settings)
        await again.start()
        await again.stop()

    asyncio.run(life())


def test_clients_are_told_the_bound_address_unless_another_is_for_them(tmp_path: Path) -> None:
    async def told(advertise: HostPort | None) -> tuple[str, str]:
        node = NodeSettings(file_bytes=4 * MIB)
        server = Server(StandaloneSettings(tmp_path, port=0, node=node, advertise=advertise))
        await server.start()
        async with pydanube.connect(server.url) as client:
            connection = await client.connection()
        await close_all()
        await server.stop()
        assert connection.welcome is not None
        return connection.welcome.address, str(HostPort(*server.address))

    address, bound = asyncio.run(told(None))
    assert address == bound
    assert asyncio.run(told(HostPort("::1", 7)))[0] == "[::1]:7"


def test_connections_leave_files_to_the_rest() -> None:
    config = server_module.load(None, {}, {"data_dir": "data"}).config
    assert standalone_settings(config, 10_000).connections_max == 10_000 - 512
    assert standalone_settings(config, 1 << 20).connections_max == 20_000
    assert standalone_settings(config, resource.RLIM_INFINITY).connections_max == 20_000
