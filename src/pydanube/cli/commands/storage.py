"""`danube storage`."""

from __future__ import annotations

from pathlib import Path

import click

from pydanube.base.errors.root import ExitCode
from pydanube.base.units import shown_bytes
from pydanube.cli.shell import values
from pydanube.cli.shell.failures import say
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, Row, destructive, prints, progress
from pydanube.cli.shell.running import connected, run
from pydanube.cli.shell.values import many, shown_time
from pydanube.client import Client
from pydanube.operations.operation import Answer
from pydanube.operations.storage import (
    Damage,
    LostNode,
    ObjectStorage,
    RemainingState,
    Salvage,
    SegmentSummary,
    TierUsage,
    TopicUsage,
    TopicVerification,
    Upload,
)

SEGMENTS_SHOWN = 1_000
_SIZES = ("bytes", "local_bytes", "object_bytes", "waiting_bytes")
_USAGE = ("topic", *_SIZES[:3], "segments", "waiting_bytes", "lag_seconds")


@click.group(cls=CommandGroup, epilog="Example: danube storage usage")
def storage() -> None:
    """Show and manage what is stored on disk and in object storage."""


class StorageUsage(Answer):
    status: ObjectStorage
    topics: list[TopicUsage]
    total: TierUsage


@storage.command("usage", epilog="Example: danube storage usage orders")
@click.argument("topic", type=values.topic, required=False)
@click.option("--namespace", default="default", show_default=True, help="Without TOPIC: all topics of this namespace.")
@click.option("--all", "everywhere", is_flag=True, help="Without TOPIC: all namespaces.")
@prints(StorageUsage)
@connected
async def usage(client: Client, output: Output, topic: str | None, namespace: str, everywhere: bool) -> None:
    """Show how many bytes topics have in each tier, and how many wait for upload.

    `bytes` counts every message once. `local bytes` are on the local disk, `object bytes` are the compressed objects in
    object storage; data in both tiers counts in both. `waiting bytes` are waiting for upload, the oldest of them for
    `lag seconds`. Problems are named.
    """
    if topic is not None:
        rows = [await client.admin.storage_usage(topic)]
    else:
        names = await client.admin.namespaces() if everywhere else [namespace]
        rows = [each for name in names for each in await client.admin.storage_usages(name)]
    status = await client.admin.storage_status()
    whole = StorageUsage(status, rows, _total(rows))
    if not output.for_people:
        output.record(whole)
        return
    total: Row = {"topic": "total", **whole.total}
    shown = rows if topic is not None else [*rows, total]
    columns = (*_USAGE, "troubles") if any(each.troubles for each in rows) else _USAGE
    output.table([{**each, **{name: shown_bytes(each[name]) for name in _SIZES}} for each in shown], columns)
    for trouble in _troubles(status):
        say(f"{status.objects}: {trouble}")


def _troubles(status: ObjectStorage) -> list[str]:
    """Problems with object storage: those of now, and the last known ones."""
    return list(dict.fromkeys(each for each in (status.trouble, *status.troubles) if each))


def _total(rows: list[TopicUsage]) -> TierUsage:
    sums = {name: sum(each[name] for each in rows) for name in (*_SIZES, "segments", "doomed_objects")}
    lag = max((each.lag_seconds for each in rows), default=0.0)
    return TierUsage(**sums, lag_seconds=lag, troubles=[name for each in rows for name in each.troubles])


@storage.command("segments", epilog="Example: danube storage segments orders --from 1000")
@click.argument("topic", type=values.topic)
@click.option(
    "--from",
    "start",
    type=values.Integer(min=0),
    default=0,
    metavar="OFFSET",
    help="Segments that contain this offset or later ones.",
)
@click.option(
    "--count",
    "-n",
    type=values.Integer(1, 1_000_000),
    default=SEGMENTS_SHOWN,
    show_default=True,
    help="Maximum number of segments.",
)
@prints(list[SegmentSummary])
@connected
async def segments(client: Client, output: Output, topic: str, start: int, count: int) -> None:
    """List the segments of a topic, of all partitions, oldest first.

    Data that is sealed but not uploaded yet is listed by its ledger. Data that is still being written is not listed.
    """
    found = await client.admin.segments(topic, start=start, limit=count + 1)
    shown = [{**each, "newest": shown_time(each.newest)} for each in found[:count]]
    columns = ("topic", "segment", "where", "first", "last", "bytes", "object_bytes", "newest")
    output.rows(found[:count], columns, shown)
    if len(found) > count:
        say(f"there are more than {count:,}", "Pass --count, or --from with an offset.")


@storage.command("verify", epilog="Example: danube storage verify orders")
@click.argument("topic", type=values.topic)
@prints(TopicVerification)
@connected
async def verify(client: Client, output: Output, topic: str) -> int:
    """Read every segment of a topic and verify it.

    Checks the size, the checksum and the digest of the rows. If objects are lost or damaged, names them and exits with
    1. It reads everything that the topic has in object storage, which some providers charge for.
    """
    total = (await client.admin.storage_usage(topic)).segments
    with progress(f"verifying {topic}", total) as advance:
        found = await client.admin.verify_topic(topic, tell=lambda _: advance(1))
    checked = many(found.segments, "segment")
    if not found.troubles:
        output.done(f"{checked} of {topic} ({shown_bytes(found.object_bytes)}): all intact", found)
        return ExitCode.SUCCESS
    if output.for_people:
        output.table(found.troubles, ("topic", "first", "result", "segment", "what"))
    else:
        output.record(found)
    say(
        f"{topic}: {len(found.troubles)} of {checked} lost, damaged or not readable",
        "Restore the named objects; nothing is deleted because of them.",
    )
    return ExitCode.FAILED


@storage.command("salvage", epilog="Example: danube storage salvage orders --dry-run")
@click.argument("topic", type=values.topic, required=False)
@prints(list[Salvage])
@destructive
@connected
async def salvage(client: Client, output: Output, confirmation: Confirmation, topic: str | None) -> int:
    """Accept the loss of messages that are damaged on disk.

    Reads everything that TOPIC has on the local disk (or all topics with known damage) and lists what cannot be read:
    offsets of messages, or of the topic's state (cursors and producers). With --dry-run it stops there, and exits
    with 1 if anything is damaged. Otherwise it gives up the listed data for good: readers and subscriptions skip it.
    If you have a backup, restore the storage directory instead.
    """
    topics = [topic] if topic is not None else await client.admin.damaged_topics()
    found = [await client.admin.examine_topic(name) for name in topics]
    rows = [each for examined in found for each in examined.damage or ()]
    if not rows:
        output.done(f"nothing is damaged: checked {many(len(topics), 'topic')}", found)
        return ExitCode.SUCCESS
    left = [each for examined in found for each in examined.state_left or ()]
    if output.for_people:
        output.table([_shown(each) for each in rows], ("topic", "what", "ledger", "first", "last", "messages"))
        for remaining in left:
            say(state_left(remaining))
    if not confirmation.ask(output, f"give up {damage_of(rows)}", found):
        return ExitCode.FAILED
    accepted = [await client.admin.examine_topic(name, accept=True) for name in topics]
    output.done(f"gave up {damage_of(rows)}", accepted)
    return ExitCode.SUCCESS


def _shown(found: Damage) -> Row:
    """For people. The numbers of state are internal record numbers, which mean nothing to them."""
    if found.what != "messages":
        return {**found, "first": None, "last": None, "messages": None}
    return {**found, "messages": "unknown" if found.messages is None else found.messages}


def damage_of(rows: list[Damage]) -> str:
    """The damage in words: messages, offsets that may not have had a message, and state."""
    messages = [each for each in rows if each.what == "messages"]
    known = sum(each.messages or 0 for each in messages)
    unknown = sum(each.last - each.first + 1 for each in messages if each.messages is None)
    states = list(dict.fromkeys(each.topic for each in rows if each.what == "state"))
    parts = [many(known)] if known else []
    if unknown:
        parts.append(f"at most {many(unknown)}{' more' if known else ''} (the exact number is not known)")
    if states:
        parts.append(f"the damaged part of the state of {', '.join(states[:3])}{' and others' if states[3:] else ''}")
    return "; ".join(parts)


def state_left(left: RemainingState) -> str:
    """What remains of a topic whose state is damaged."""
    kept = [f"{each.subscription} (done up to offset {each.floor})" for each in left.subscriptions]
    text = f"{left.topic}: without the damaged part of its state, it has "
    text += f"{many(len(kept), 'subscription')}: {', '.join(kept)}" if kept else "no subscription that is known by name"
    if lost := left.subscriptions_lost:
        text += f"; {many(lost, 'subscription')} more {'is' if lost == 1 else 'are'} lost together with the name"
    return f"{text}. Acknowledgements in that part are lost, so those messages will be delivered again"


@storage.command("upload", epilog="Example: danube storage upload orders")
@click.argument("topic", type=values.topic)
@prints(Upload)
@connected
async def upload(client: Client, output: Output, topic: str) -> None:
    """Upload a topic to object storage now, and wait until it is done.

    The broker also uploads on its own when enough data has accumulated or enough time has passed.
    """
    found = await client.admin.upload_topic(topic)
    if not found.segments:
        output.done(f"nothing to upload: all of {topic} is already in object storage", found)
        return
    sizes = f"{shown_bytes(found.bytes or 0)}, as objects {shown_bytes(found.object_bytes or 0)}"
    what = f"{many(found.segments, 'segment')} with {many(found.messages or 0)} ({sizes})"
    output.done(f"uploaded {what} of {topic}", found)


@storage.command("forget-node", epilog="Example: danube storage forget-node --data-dir ./data --dry-run")
@click.option("--data-dir", type=Path, required=True, help="Data directory of the broker, which must not be running.")
@prints(LostNode)
@destructive
def forget_node(output: Output, confirmation: Confirmation, data_dir: Path) -> int:
    """Give up a storage directory that is gone for good.

    A broker does not start without its storage directory (`node` in the data directory), because the directory may only
    be missing temporarily. If the disk is lost and you have no backup, this command removes it from the metadata.
    Topics, policies and everything in object storage stay; all other messages, subscriptions and producers are lost.
    The next start creates a new directory. With --dry-run, the command lists what would be lost and exits with 1.
    """
    from pydanube.api.lost_node import forget

    found = run(forget(data_dir, accept=False))
    topics = found.topics
    if output.for_people:
        shown = [{**each, "messages": f"{each.messages:,}{' or more' if each.more else ''}"} for each in topics]
        output.table(shown, ("topic", "messages", "stored"))
    known = sum(each.messages for each in topics)
    action = f"forget storage node {found.node} with {many(known)} or more, and the subscriptions and producers of "
    action += many(len(topics), "topic or partition") if len(topics) == 1 else f"{len(topics):,} topics and partitions"
    if not confirmation.ask(output, action, found):
        return ExitCode.FAILED
    done = run(forget(data_dir, accept=True))
    output.done(f"forgot storage node {found.node}; the broker can be started", done)
    return ExitCode.SUCCESS
