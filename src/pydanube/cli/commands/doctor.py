"""`danube doctor`: checks of this machine and of the broker, each with what to do about it. Changes nothing."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import click

from pydanube import __version__
from pydanube.base.errors import DanubeError, VerbUnknown
from pydanube.base.limits import BLOCKED_LISTED_MAX, NODE_LEDGERS_WARN, SECOND
from pydanube.base.units import shown_bytes
from pydanube.cli.shell.output import Output, prints
from pydanube.cli.shell.running import client_of, run
from pydanube.cli.shell.settings import broker_of, broker_options
from pydanube.cli.shell.values import many, shown_time
from pydanube.client import Client
from pydanube.client.transport import parse_addresses
from pydanube.operations.operation import Answer

OK, WARN, FAIL = "ok", "warn", "fail"
FREE_BYTES_WARN = 10 << 30
FREE_BYTES_FAIL = 1 << 30  # room for a few journal files
SYNC_SECONDS_WARN = 0.02  # every durable publish waits for a sync
FILES_WARN = 65_536
FILES_FAIL = 1024
SKEW_SECONDS_MAX = 2.0
BUILT_SECONDS = 1_767_225_600  # 2026: an earlier time must be wrong
SYNCS = 9
DAY_SECONDS = 24 * 3600


class Finding(Answer):
    check: str
    result: str
    found: str
    advice: str = ""


@click.command(epilog="Example: danube doctor --data-dir ./data")
@click.option("--data-dir", type=Path, help="Data directory of the broker. [env: DANUBE_DATA_DIR]")
@click.option("--spark", is_flag=True, help="Check the requirements of Spark even if PySpark is not installed.")
@prints(list[Finding])
@broker_options
@click.pass_context
def doctor(ctx: click.Context, output: Output, data_dir: Path | None, spark: bool) -> int:
    """Check this machine and the broker, and suggest fixes.

    Exits with 1 if a check failed. A missing broker is only a warning: its port is free.
    """
    if data_dir is None and "DANUBE_DATA_DIR" in os.environ:
        data_dir = Path(os.environ["DANUBE_DATA_DIR"])
    findings = [*_versions(), _files(), _clock(data_dir), *_disk(data_dir), *_spark(spark), *run(_broker(ctx))]
    output.rows(findings, ("check", "result", "found", "advice"))
    return int(any(each.result == FAIL for each in findings))


def _versions() -> Iterator[Finding]:
    python = platform.python_version()
    yield (
        Finding("python", OK, python)
        if sys.version_info >= (3, 11)
        else Finding("python", FAIL, python, "Install Python 3.11 or newer.")
    )
    for package, lacking, result in (
        ("uvloop", "Run pip install uvloop: the event loop is a third slower without it.", WARN),
        ("pyarrow", "Run pip install 'pydanube[arrow]' for Parquet and Arrow.", WARN),
    ):
        try:
            yield Finding(package, OK, version(package))
        except PackageNotFoundError:
            yield Finding(package, result, "not installed", lacking)
    yield Finding("pydanube", OK, __version__)


def _spark(asked: bool) -> Iterator[Finding]:
    if not asked and find_spec("pyspark") is None:
        return
    from pydanube.spark.checks import checks

    for each in checks():
        softer = each.result == FAIL and not asked  # a broker works without Spark
        yield Finding(each.check, WARN if softer else each.result, each.found, each.advice)


def _files() -> Finding:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = "Raise it with ulimit -Hn, or LimitNOFILE= in a systemd unit: every connection is an open file."
    if most == resource.RLIM_INFINITY or most >= FILES_WARN:
        return Finding("open files", OK, "no limit" if most == resource.RLIM_INFINITY else f"{most:,} at most")
    return Finding("open files", FAIL if most < FILES_FAIL else WARN, f"{most:,} at most", advice)


def _clock(data_dir: Path | None) -> Finding:
    """The files of a broker are never newer than now, unless the clock went back."""
    now = time.time()
    newest = max((each.stat().st_mtime for each in data_dir.glob("*")), default=0.0) if data_dir is not None else 0.0
    shown = str(shown_time(round(now * SECOND)))
    if now < BUILT_SECONDS or newest > now + SKEW_SECONDS_MAX:
        return Finding(
            "clock", FAIL, shown, "Set the clock and sync it with NTP: retention and seek by time depend on it."
        )
    return Finding("clock", OK, shown)


def _disk(data_dir: Path | None) -> Iterator[Finding]:
    if data_dir is None:
        yield Finding("disk", WARN, "not checked", "Pass --data-dir to check its disk.")
        return
    here = next(each for each in (data_dir, *data_dir.absolute().parents) if each.exists())
    if not here.is_dir():
        yield Finding("disk", FAIL, f"{here} is not a directory", "Choose another --data-dir.")
        return
    free = shutil.disk_usage(here).free
    result = OK if free >= FREE_BYTES_WARN else WARN if free >= FREE_BYTES_FAIL else FAIL
    advice = "" if result == OK else "Free space, shorten retention, or use a larger disk."
    yield Finding("disk space", result, f"{shown_bytes(free)} free at {here}", advice)
    try:
        seconds = _sync_seconds(here)
    except OSError as error:
        advice = "Give the broker's user permission to write there."
        yield Finding("disk sync", FAIL, f"{here} cannot be written: {error.strerror}", advice)
        return
    slow = seconds > SYNC_SECONDS_WARN
    advice = "A durable publish takes at least this long; use a disk that syncs faster, or durability buffered."
    yield Finding("disk sync", WARN if slow else OK, f"{seconds * 1000:.2f} ms at {here}", advice if slow else "")


def _sync_seconds(directory: Path) -> float:
    """The median time to sync 4 KiB, the size of a small group of messages."""
    took: list[float] = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(SYNCS):
            file.write(b"\0" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return median(took)


async def _broker(ctx: click.Context) -> list[Finding]:
    broker = broker_of(ctx)
    where = f"{broker.shown} ({broker.origin})"
    try:
        async with client_of(ctx) as client:
            now = time.time_ns() // 1000
            welcome = (await client.connection()).welcome
            assert welcome is not None
            began = time.perf_counter()
            await client.admin.namespaces()
            took = time.perf_counter() - began
            waiting = [*await _subscriptions(client), *await _abandoned(client)]
            objects = [*waiting, *await _ledgers(client), *await _sinks(client), *await _objects(client)]
    except DanubeError as error:
        if _is_taken(broker.url):
            return [Finding("broker", FAIL, f"{where}: {error}", error.help)]
        return [
            Finding("broker", WARN, f"no broker is listening at {where}", "Start a broker with `danube standalone`.")
        ]
    found = [Finding("broker", OK, f"{welcome.broker} answers at {where} in {took * 1000:.1f} ms")]
    apart = abs(welcome.time - now) / SECOND
    if welcome.time and apart > SKEW_SECONDS_MAX:
        advice = "Sync both clocks with NTP: seek by time and retention use the broker's clock."
        found.append(Finding("broker clock", WARN, f"{apart:,.1f} seconds from this machine's", advice))
    if welcome.broker.removeprefix("danube ") != __version__:
        advice = "Use the same version on both sides."
        found.append(Finding("broker version", WARN, f"{welcome.broker}, and this is {__version__}", advice))
    return [*found, *objects]


async def _subscriptions(client: Client) -> list[Finding]:
    """Blocked subscriptions and damaged topics."""
    try:
        blocked = await client.admin.blocked_subscriptions()
    except VerbUnknown:  # an older broker
        return []
    damaged = [
        Finding("damage", FAIL, f"{topic} is damaged on disk", f"See `danube storage salvage {topic} --dry-run`.")
        for topic in (await client.admin.damaged_topics())[:BLOCKED_LISTED_MAX]
    ]
    return damaged + [
        Finding(
            "subscription",
            WARN,
            f"{each.subscription} of {each.topic} is blocked at offset {each.offset}",
            f"See `danube subscription explain {each.topic} {each.subscription} --offset {each.offset}`.",
        )
        for each in blocked
    ]


async def _abandoned(client: Client) -> list[Finding]:
    """Subscriptions that no one reads, for example of a forgotten pipeline. They keep all messages since."""
    try:
        found = await client.admin.abandoned_subscriptions()
    except VerbUnknown:  # an older broker
        return []
    return [
        Finding(
            "subscription",
            WARN,
            f"{each.subscription} of {each.topic} has not been read for "
            f"{each.backlog_seconds / DAY_SECONDS:.0f} days and keeps all messages since",
            f"Start its pipeline or consumers, or `danube subscription delete {each.topic} {each.subscription}`.",
        )
        for each in found
    ]


async def _ledgers(client: Client) -> list[Finding]:
    """Whether the broker is running out of ledgers: every topic has some, and their number is limited."""
    found = await client.admin.status()
    if found.ledgers < NODE_LEDGERS_WARN:
        return []
    advice = "Delete unused topics, shorten retention, or look for abandoned subscriptions."
    shown = f"{found.ledgers:,} of {found.ledgers_max:,}; at the limit, publishing is refused"
    return [Finding("ledgers", FAIL if found.ledgers >= found.ledgers_max else WARN, shown, advice)]


async def _sinks(client: Client) -> list[Finding]:
    """Exactly-once writers whose batch cannot be written: their topics accept nothing else."""
    try:
        found = await client.admin.sinks()
    except VerbUnknown:  # an older broker
        return []
    advice = "Fix the cause, or give up the batch with `danube sink forget --abandon`."
    return [Finding("sink", FAIL, each.error, advice) for each in found if each.error is not None]


async def _objects(client: Client) -> list[Finding]:
    """Whether object storage, if configured, answers, belongs to this broker, and accepts uploads."""
    try:
        began = time.perf_counter()
        found = await client.admin.storage_status()
    except VerbUnknown:  # an older broker
        return []
    took, location = time.perf_counter() - began, found.objects
    if location is None:
        return []
    if found.trouble is not None:
        advice = (
            "Check storage.objects.url, the network and the credentials. Until it works, messages stay on the disk."
        )
        return [Finding("object storage", FAIL, f"{location}: {found.trouble}", advice)]
    if found.troubles or found.troubled_topics:
        what = "; ".join([*found.troubles, f"{many(found.troubled_topics, 'topic')} with problems"])
        return [Finding("object storage", WARN, f"{location}: {what}", "See `danube storage usage --all`.")]
    return [Finding("object storage", OK, f"{location} answers in {took * 1000:.1f} ms and is this broker's")]


def _is_taken(url: str) -> bool:
    """Whether anything accepts connections at the address."""
    for address in parse_addresses(url):
        try:
            socket.create_connection((address.host, address.port), timeout=2).close()
        except OSError:
            continue
        return True
    return False
