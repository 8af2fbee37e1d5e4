"""A fixture for each server, one of each for the whole run, with its data below pytest's temporary folder.

A test gets a `Place`: the URL of a prefix of its own, and the environment with the credentials.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import pytest

from servers.process import answers, free_port, serving

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / ".servers"
PYTHON = INSTALLED / "python/bin/python"
HERE = Path(__file__).parent
BUCKET = "danube"
AZURITE_KEY = base64.b64encode(b"a key of the tests, not a secret").decode()


@dataclass(frozen=True)
class Place:
    """Where a test may put objects: `url` and `options` as in the configuration, `environment` with credentials."""

    url: str
    options: dict[str, str]
    environment: dict[str, str]


@dataclass(frozen=True)
class ObjectServer:
    """A running server. `base` is the URL of its bucket."""

    base: str
    options: dict[str, str]
    environment: dict[str, str]
    port: int

    def place(self) -> Place:
        """A prefix that nobody else has."""
        scheme, _, rest = self.base.partition("://")
        return Place(f"{scheme}://{rest}/{uuid.uuid4().hex}", self.options, self.environment)


def _want(file: Path, name: str, *, always_in_ci: bool) -> None:
    if file.exists():
        return
    if always_in_ci and os.environ.get("CI"):
        pytest.fail(f"{name} is not installed, and CI must have it: run `make servers`")
    pytest.skip(f"{name} is not installed: run `make servers`")


def _s3(port: int, key: str, secret: str) -> ObjectServer:
    endpoint = f"http://127.0.0.1:{port}"
    environment = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
    command = [PYTHON, HERE / "make_bucket.py", endpoint, BUCKET]
    subprocess.run(command, env={**os.environ, **environment}, check=True, timeout=60)
    return ObjectServer(f"s3://{BUCKET}", {"endpoint": endpoint, "region": "us-east-1"}, environment, port)


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """S3 in memory. It takes every signature for good."""
    _want(PYTHON, "moto", always_in_ci=True)
    folder, port = tmp_path_factory.mktemp("moto"), free_port()
    command = [PYTHON.with_name("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with serving(command, folder / "log", lambda: answers(port)):
        yield _s3(port, "anyone", "anything")


@pytest.fixture(scope="session")
def swift_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """S3 on disk, by OpenStack Swift. It checks signatures."""
    _want(PYTHON, "Swift", always_in_ci=True)
    folder, ports = tmp_path_factory.mktemp("swift"), [free_port() for _ in range(4)]
    command = [PYTHON, HERE / "swift_launcher.py", folder, *map(str, ports)]
    with serving(command, folder / "log", lambda: all(map(answers, ports))):
        yield _s3(ports[0], "test:tester", "testing")


@pytest.fixture(scope="session")
def azurite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """Azure Blob Storage, by Microsoft's emulator. It checks signatures."""
    program = INSTALLED / "azurite/node_modules/.bin/azurite-blob"
    _want(program, "Azurite", always_in_ci=False)
    folder, port = tmp_path_factory.mktemp("azurite"), free_port()
    command = [program, "--silent", "--disableTelemetry", "--skipApiVersionCheck", "--location", folder]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with serving(command, folder / "log", lambda: answers(port), {"AZURITE_ACCOUNTS": f"tester:{AZURITE_KEY}"}):
        _make_container(port)
        environment = {"AZURE_STORAGE_ACCOUNT": "tester", "AZURE_STORAGE_KEY": AZURITE_KEY}
        options = {"endpoint": f"http://127.0.0.1:{port}/tester"}
        yield ObjectServer(f"azblob://{BUCKET}", options, environment, port)


def _make_container(port: int) -> None:
    date, version = formatdate(usegmt=True), "2021-08-06"
    signed = f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:{version}\n"
    signed += f"/tester/tester/{BUCKET}\nrestype:container"
    digest = hmac.digest(base64.b64decode(AZURITE_KEY), signed.encode(), hashlib.sha256)
    headers = {"x-ms-date": date, "x-ms-version": version, "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey tester:{base64.b64encode(digest).decode()}"
    url = f"http://127.0.0.1:{port}/tester/{BUCKET}?restype=container"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=20):
        pass


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """Redis with a password."""
    unpacked = INSTALLED / "redis"
    program = Path(shutil.which("redis-server") or unpacked / "usr/bin/redis-server")
    _want(program, "Redis", always_in_ci=False)
    libraries = ":".join(str(each) for each in sorted(unpacked.glob("usr/lib/*-linux-gnu")))
    folder, port = tmp_path_factory.mktemp("redis"), free_port()
    settings = f'bind 127.0.0.1\nport {port}\ndir {folder}\nsave ""\nrequirepass testing\n'
    (folder / "redis.conf").write_text(settings)
    with serving(
        [program, folder / "redis.conf"], folder / "log", lambda: answers(port), {"LD_LIBRARY_PATH": libraries}
    ):
        yield ObjectServer(f"redis://127.0.0.1:{port}", {}, {"REDIS_PASSWORD": "testing"}, port)
