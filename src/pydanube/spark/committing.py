"""What the driver does at the end of a write: it lists everything that was staged, and requests a commit.

The list is a message beside the staged rows, the decision; `sink.commit` makes it durable and carries it out. No matter
how often, and from which process, the commit is requested, a batch is written once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import unquote, urlsplit
from uuid import UUID

from pydanube.base.errors import DanubeError, TopicNotFound
from pydanube.base.limits import MIB, SINK_SOURCE_BYTES_MAX
from pydanube.client import Client
from pydanube.operations.sinks import CommitSink, CommittedBatch, OnceName
from pydanube.spark.batching import RowBatcher, TargetTopic
from pydanube.spark.broker_link import PATIENCE_SECONDS, RETRY, BrokerLink, with_retries
from pydanube.spark.sink_options import SinkOptions
from pydanube.spark.staging import Refs, Writer, add_ref, find_target, open_staging
from pydanube.wire.batch import Codec, build

STREAM: Final = "stream"  # how the batches of a writer are numbered
VERSION: Final = "version"
PLAIN: Final = "plain"
QUERY, BATCH, GROUP, APPLICATION = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id", "spark.app.id"
ANY_TOPIC = "*"  # the target if rows name their topics
LINE_BYTES_MAX = 16 * MIB  # of Spark's own lines in a checkpoint
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Write:
    """The identity of one batch of a writer."""

    writer: Writer
    once: OnceName
    run: str = ""
    batch: int = 0


def identify(options: SinkOptions, target: str, property_of: Callable[[str], str | None], own: str) -> Write:
    """Identifies the write by its options and by properties of Spark's job; `own` is a unique name.

    Within foreachBatch, it is the query's batch, which is written once, as if the query had written it itself.
    """
    if options.application is not None:
        writer = Writer(f"application {options.application}", target, options.write_name)
        return Write(writer, VERSION, batch=options.version)
    query, batch = property_of(QUERY), property_of(BATCH)
    if query is None or batch is None:
        return Write(Writer(f"write {own}", target, options.write_name), PLAIN)
    return Write(Writer(query, target, options.write_name), STREAM, run_of(property_of), int(batch))


def batcher_of(
    link: BrokerLink, write: Write, partition: int, topic: str | None, codec: Codec = Codec.NONE
) -> RowBatcher:
    """The batcher of one task, by the number of its partition. `topic` is for rows that name none."""

    def find(name: str) -> TargetTopic:
        return link.wait(find_target(link.client, name))

    turn = write.batch + partition  # so that small batches do not all go to the first partition
    return RowBatcher(find, link.client.clock.wall, topic, turn=turn, codec=codec)


def run_of(property_of: Callable[[str], str | None]) -> str:
    """Spark's id of the run, which is also the group of its jobs. If a program has changed the group, the id of the
    application is used instead, so that a second write of a batch still differs from a repetition.
    """
    group = property_of(GROUP) or ""
    try:
        return str(UUID(group))
    except ValueError:
        return property_of(APPLICATION) or ""


def merged(all_parts: Iterable[Mapping[str, Refs]]) -> dict[str, Refs]:
    """The references of all tasks, in the order of the tasks."""
    parts: dict[str, Refs] = {}
    for each in all_parts:
        for partition, refs in each.items():
            for first, last in refs:
                add_ref(parts.setdefault(partition, []), first, last)
    return parts


async def commit(client: Client, write: Write, parts: Mapping[str, Refs], source: str) -> str:
    """Returns `new`, or `done` if the batch was written before. Raises permanent errors."""
    decision = json.dumps({"parts": parts}, separators=(",", ":")).encode()
    channel = await open_staging(client, write.writer)
    if write.once == STREAM and not source:
        _warn_once(write, channel.last)
    try:
        offset = await channel.publish(build([decision], publish_time=client.clock.wall()))
    finally:
        await channel.close_channel(wait=False)
    request = CommitSink(
        **write.writer._asdict(), once=write.once, run=write.run, batch=write.batch, source=source, decision=offset
    )
    return await _until_done(client, request, channel.topic)


def _warn_once(write: Write, last: CommittedBatch | None) -> None:
    """Only for the first batch of a run, which the broker knows: Spark commits each batch in a new process."""
    if last is None or last.run != write.run:
        log.warning(
            "query %s, to %s: the end of its input cannot be read here, so a copied or wiped checkpoint goes "
            "unnoticed, and rows may then be lost or written twice; give the write the option checkpointLocation, "
            "with a local path of the driver",
            write.writer.query,
            write.writer.target,
        )


async def _until_done(client: Client, request: CommitSink, staging: str) -> str:
    """Requests the same decision until it is answered. The broker answers when the rows are written."""
    loop = asyncio.get_running_loop()
    until, pauses, asked = loop.time() + PATIENCE_SECONDS, iter(RETRY), False
    while True:
        began = loop.time()
        try:
            connection = await asyncio.wait_for(client.connection(), PATIENCE_SECONDS)
            return (await connection.request(request)).verdict
        except TimeoutError:
            raise client.unreachable() from None
        except TopicNotFound:
            if request.once == PLAIN and asked and not await topic_exists(client, staging):
                return "done"  # staged rows are deleted once they are written: only the answer was lost
            raise
        except DanubeError as error:
            if not error.retriable:
                raise
            now, pause = loop.time(), next(pauses)
            if now - began > RETRY.longest:
                until = now + PATIENCE_SECONDS  # the broker was writing, so this time does not count
            if now + pause > until:
                raise
        asked = True
        await asyncio.sleep(pause)


async def topic_exists(client: Client, topic: str) -> bool:
    try:
        await with_retries(lambda: client.topic(topic))
    except TopicNotFound:
        return False
    return True


# -- where the input of a batch ends -----------------------------------------------------------------------------------


def source_end(checkpoint: str | None, batch: int) -> str:
    """The end in the checkpoint, in one spelling; its digest if it is long; "" if it cannot be read here."""
    path = local_checkpoint(checkpoint)
    if path is None:
        return ""
    try:
        with (path / "offsets" / str(batch)).open("rb") as file:
            return _ends(file)
    except (OSError, UnicodeDecodeError, ValueError):
        return ""


def _ends(file: BinaryIO) -> str:
    for _ in range(2):  # the version, and Spark's own line
        if not file.readline(LINE_BYTES_MAX).endswith(b"\n"):
            return ""
    data = file.read(SINK_SOURCE_BYTES_MAX + 1)
    if len(data) > SINK_SOURCE_BYTES_MAX:
        digest = hashlib.sha256(data)
        while data := file.read(MIB):
            digest.update(data)
        return f"sha256:{digest.hexdigest()}"
    ends = [_value(line) for line in data.decode().splitlines()]
    return json.dumps(ends, sort_keys=True, separators=(",", ":")) if ends else ""


def local_checkpoint(checkpoint: str | None) -> Path | None:
    """The folder, if this process can open it."""
    if not checkpoint:
        return None
    parts = urlsplit(checkpoint)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(checkpoint)


def _value(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return line
