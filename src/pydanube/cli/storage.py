"""`danube storage`."""

from __future__ import annotations

from typing import Any

import click

from pydanube.cli import values
from pydanube.cli.failures import Exit, say
from pydanube.cli.lazy import Noun
from pydanube.cli.output import Agreement, Output, destructive, printed, progress
from pydanube.cli.running import connected
from pydanube.cli.values import many, shown_time, sized
from pydanube.client import Client

SEGMENTS_SHOWN = 1_000
_SIZES = ("bytes", "local_bytes", "object_bytes", "waiting_bytes")
_USAGE = ("topic", *_SIZES[:3], "segments", "waiting_bytes", "lag_seconds")
Row = dict[str, Any]


@click.group(cls=Noun, epilog="Example: danube storage usage")
def storage() -> None:
    """What lies where: local disk and object storage."""


@storage.command("usage", epilog="Example: danube storage usage orders")
@click.argument("topic", type=values.topic, required=False)
@click.option("--namespace", default="default", show_default=True, help="Without TOPIC: of all its topics.")
@click.option("--all", "everywhere", is_flag=True, help="Without TOPIC: of all namespaces.")
@printed
@connected
async def usage(client: Client, output: Output, topic: str | None, namespace: str, everywhere: bool) -> None:
    """What topics have in which tier, in bytes, and what waits.

    `bytes` are of all messages, each counted once; `local bytes` of those on the local disk, `object bytes` of the
    objects, which are compressed. What has both counts in both. `waiting bytes` are to be uploaded, the oldest of them
    since `lag seconds`. What does not work is named.
    """
    if topic is not None:
        rows = [await client.admin.storage_usage(topic)]
    else:
        names = await client.admin.namespaces() if everywhere else [namespace]
        rows = [each for name in names for each in await client.admin.storage_usages(name)]
    status = await client.admin.storage_status()
    whole = _total(rows)
    if not output.for_people:
        output.record({"objects": status["objects"], "troubles": _troubles(status), "topics": rows, "total": whole})
        return
    shown = rows if topic is not None else [*rows, whole]
    columns = (*_USAGE, "troubles") if any(each["troubles"] for each in rows) else _USAGE
    output.rows([each | {name: sized(each[name]) for name in _SIZES} for each in shown], columns)
    for trouble in _troubles(status):
        say(f"{status['objects']}: {trouble}")


def _troubles(status: Row) -> list[str]:
    """Of the place; as it answers now, or as it did last."""
    return list(dict.fromkeys(each for each in (status["trouble"], *status["troubles"]) if each))


def _total(rows: list[Row]) -> Row:
    sums = {name: sum(each[name] for each in rows) for name in (*_SIZES, "segments", "doomed_objects")}
    lag = max((each["lag_seconds"] for each in rows), default=0.0)
    return {
        "topic": "total",
        **sums,
        "lag_seconds": lag,
        "troubles": [name for each in rows for name in each["troubles"]],
    }


@storage.command("segments", epilog="Example: danube storage segments orders --from 1000")
@click.argument("topic", type=values.topic)
@click.option(
    "--from", "start", type=values.Whole(min=0), default=0, metavar="OFFSET", help="Those that hold it, or later ones."
)
@click.option(
    "--count", "-n", type=values.Whole(1, 1_000_000), default=SEGMENTS_SHOWN, show_default=True, help="At most."
)
@printed
@connected
async def segments(client: Client, output: Output, topic: str, start: int, count: int) -> None:
    """Segments of a topic, of all partitions, oldest first.

    What is sealed and not uploaded yet is listed as the ledger that it lies in. What is still being written is not
    listed.
    """
    found = await client.admin.segments(topic, start=start, limit=count + 1)
    rows = [each | {"newest": shown_time(each["newest"])} for each in found[:count]]
    columns = ("topic", "segment", "where", "first", "last", "bytes", "object_bytes", "newest")
    output.rows(rows, columns)
    if len(found) > count:
        say(f"there are more than {count:,}", "Say --count, or --from with an offset.")


@storage.command("verify", epilog="Example: danube storage verify orders")
@click.argument("topic", type=values.topic)
@printed
@connected
async def verify(client: Client, output: Output, topic: str) -> int:
    """Read every segment of a topic again, and check it.

    Its size and checksum, and the digest of its rows. Ends with 1 and names the objects if any are lost or damaged. It
    reads all that the topic has in object storage, which some providers charge for.
    """
    total = (await client.admin.storage_usage(topic))["segments"]
    with progress(f"verifying {topic}", total) as advance:
        found = await client.admin.verify_topic(topic, tell=lambda _: advance(1))
    checked, troubles = many(found["segments"], "segment"), found["troubles"]
    if not troubles:
        output.done(f"{checked} of {topic} ({sized(found['object_bytes'])}): all sound", **found)
        return Exit.FINE
    if output.for_people:
        output.rows(troubles, ("topic", "first", "result", "segment", "what"))
    else:
        output.record(found)
    say(
        f"{topic}: {len(troubles)} of {checked} lost, damaged or not readable",
        "Restore the objects that are named; nothing is deleted because of them.",
    )
    return Exit.FAILED


@storage.command("salvage", epilog="Example: danube storage salvage orders --dry-run")
@click.argument("topic", type=values.topic, required=False)
@printed
@destructive
@connected
async def salvage(client: Client, output: Output, agreement: Agreement, topic: str | None) -> int:
    """Accept the loss of messages that are damaged on disk.

    Reads all that TOPIC has on the local disk, or all topics of which damage is known, and lists what cannot be read:
    offsets of messages, or of the topic's state, which is its cursors and producers. With --dry-run that is all, and
    it ends with 1 if anything is damaged. Otherwise what is listed is given up for good: readers and subscriptions pass
    over it. Restore the storage directory from a backup instead if there is one.
    """
    topics = [topic] if topic is not None else await client.admin.damaged_topics()
    rows = [each for name in topics for each in await client.admin.salvage_topic(name)]
    if not rows:
        output.done(f"nothing is damaged: looked at {many(len(topics), 'topic')}", damage=[])
        return Exit.FINE
    shown = [each | {"messages": "unknown" if each["messages"] is None else each["messages"]} for each in rows]
    if output.for_people:
        output.rows(shown, ("topic", "what", "ledger", "first", "last", "messages"))
    known = sum(each["messages"] or 0 for each in rows if each["what"] == "messages")
    fields = {"damage": rows, "messages": known}
    deed = f"give up {many(known)} and {many(_others(rows), 'range')} of state or of unknown length"
    if not agreement.given(output, deed, **fields):
        return Exit.FAILED
    for name in topics:
        await client.admin.salvage_topic(name, accept=True)
    output.done(f"gave up {many(known)}", **fields)
    return Exit.FINE


def _others(rows: list[Row]) -> int:
    return sum(each["messages"] is None or each["what"] == "state" for each in rows)


@storage.command("upload", epilog="Example: danube storage upload orders")
@click.argument("topic", type=values.topic)
@printed
@connected
async def upload(client: Client, output: Output, topic: str) -> None:
    """Upload what a topic has to object storage now, and wait until it is there.

    It happens by itself, too, when enough has come together or enough time has passed.
    """
    found = await client.admin.upload_topic(topic)
    if not found["segments"]:
        output.done(f"nothing of {topic} waits: all of it is in object storage", **found)
        return
    sizes = f"{sized(found['bytes'])}, as objects {sized(found['object_bytes'])}"
    what = f"{many(found['segments'], 'segment')} with {many(found['messages'])} ({sizes})"
    output.done(f"uploaded {what} of {topic}", **found)
