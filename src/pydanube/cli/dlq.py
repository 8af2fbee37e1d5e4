"""`danube dlq`: messages that a subscription gave up, and their way back.

A dead letter says in its attributes where it comes from. Redriving publishes it there again, with its key and its own
attributes, and acknowledges it in a subscription of the dead-letter topic, so that it is not done twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from typing import Any, ClassVar

import click

from pydanube.base.errors import NothingReceived, SubscriptionNotFound
from pydanube.base.limits import REDELIVERIES_MAX, UNACKED_MAX
from pydanube.cli import values
from pydanube.cli.lazy import Noun
from pydanube.cli.messages import described, with_escapes
from pydanube.cli.output import Agreement, Output, destructive, printed, progress
from pydanube.cli.reading import bounded_places, how_many, nothing_left, stored
from pydanube.cli.running import connected
from pydanube.cli.subscription import described as subscription_of
from pydanube.cli.values import many, pairs
from pydanube.client import Client, Consumer, Message

SUBSCRIPTION = "danube-redrive"  # of a dead-letter topic: what it has acknowledged was published again
TOPIC = "x-original-topic"
OWN = frozenset(
    {
        TOPIC,
        "x-original-subscription",
        "x-original-topic-offset",
        "x-original-producer-id",
        "x-poison-policy",
        "x-delivery-attempt",
        "x-failure-reason",
    }
)
ACKNOWLEDGED = "It was acknowledged or skipped."  # as the broker explains it
COLUMNS = (
    "offset",
    "original_topic",
    "original_subscription",
    "original_offset",
    "attempts",
    "redriven",
    "reason",
    "payload",
)
CHUNK = 500  # letters that are published, awaited and acknowledged together
SILENCE_SECONDS = 0.2
# Nothing comes a second time while a run goes on, and letters that a filter leaves alone are in nobody's way.
OPTIONS = {
    "failure": {"ack_timeout": None, "max_redelivery_count": REDELIVERIES_MAX},
    "dispatch": {"unacked_max": UNACKED_MAX},
}

filter_option = click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="NAME=VALUE",
    help="Only dead letters that match: topic=, subscription=, reason= (a substring), key=, or an attribute.",
)


@click.group(cls=Noun, epilog="Example: danube dlq peek orders-dead")
def dlq() -> None:
    """Inspect dead letters and publish them again."""


@dlq.command("peek", epilog="Example: danube dlq peek orders-dead --count 5")
@click.argument("topic", type=values.topic)
@click.option("--count", "-n", type=values.Whole(1, 10_000), default=10, show_default=True)
@filter_option
@printed
@connected
async def peek(client: Client, output: Output, topic: str, count: int, filters: tuple[str, ...]) -> None:
    """Show dead letters: their origin, why they were set aside, and whether they were published again."""
    wanted = Filter(filters)
    letters: list[Message] = []
    async for batch in stored(client, await bounded_places(client, topic, "earliest", None)):
        letters += [each for each in batch if wanted.has(each)][: count - len(letters)]
        if len(letters) == count:
            break
    redriven = await _redriven(client, topic, letters)
    rows = [_row(letter, was, for_people=output.for_people) for letter, was in zip(letters, redriven, strict=True)]
    output.rows(rows, COLUMNS)


def _row(letter: Message, redriven: bool, *, for_people: bool) -> dict[str, Any]:
    found = described(letter)
    about = found["attributes"]
    found["attributes"] = {name: text for name, text in about.items() if name not in OWN}
    if for_people:
        found["payload"] = with_escapes(letter.payload)
    return {
        **found,
        "original_topic": about.get(TOPIC),
        "original_subscription": about.get("x-original-subscription"),
        "original_offset": _number(about.get("x-original-topic-offset")),
        "attempts": _number(about.get("x-delivery-attempt")),
        "reason": about.get("x-failure-reason"),
        "redriven": redriven,
    }


def _number(text: str | None) -> int | str | None:
    """As the broker wrote it; whoever else wrote it may have written anything."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 20 else text


async def _redriven(client: Client, topic: str, letters: list[Message]) -> list[bool]:
    """Which of them the subscription has acknowledged. Only what lies above its floor must be asked for one by one."""
    known = await subscription_of(client, topic, SUBSCRIPTION)
    if known is None:
        return [False] * len(letters)
    places = dict((await client.topic(topic)).places())
    floors = dict(zip(places, known["floors"], strict=False))  # of partitions that it has seen
    stands = [(floor, end) for floor, end in zip(known["floors"], known["ends"], strict=True) if floor is not None]
    scattered = sum(end - floor for floor, end in stands) > known["backlog"]  # something above a floor is done
    found = []
    for letter in letters:
        floor = floors.get(letter.partition)
        done = floor is not None and letter.offset < floor
        if scattered and not done and floor is not None:
            place = places[letter.partition]
            done = await client.admin.explain(place, SUBSCRIPTION, offset=letter.offset) == ACKNOWLEDGED
        found.append(done)
    return found


class Filter:
    """All that is named must hold."""

    _NAMES: ClassVar = {"topic": TOPIC, "subscription": "x-original-subscription"}

    def __init__(self, texts: Sequence[str], *, origin_needed: bool = False) -> None:
        self._origin_needed = origin_needed
        self.strangers = 0  # that would be wanted, and do not say where they come from
        self._wanted = pairs(texts, "a filter")
        if "topic" in self._wanted:
            self._wanted["topic"] = values.topic(self._wanted["topic"])

    def has(self, letter: Message) -> bool:
        if not all(self._holds(letter, name, text) for name, text in self._wanted.items()):
            return False
        stranger = self._origin_needed and TOPIC not in letter.attributes
        self.strangers += stranger
        return not stranger

    def _holds(self, letter: Message, name: str, text: str) -> bool:
        if name == "key":
            return letter.key == text
        if name == "reason":
            return text in letter.attributes.get("x-failure-reason", "")
        return letter.attributes.get(self._NAMES.get(name, name)) == text


@dlq.command("redrive", epilog="Example: danube dlq redrive orders-dead --filter subscription=billing --dry-run")
@click.argument("topic", type=values.topic)
@click.option("--limit", type=values.Whole(min=1), help="Maximum number of dead letters.")
@click.option("--to", "target", type=values.topic, help="Publish to this topic instead of the original ones.")
@filter_option
@printed
@destructive
@connected
async def redrive(
    client: Client,
    output: Output,
    agreement: Agreement,
    topic: str,
    limit: int | None,
    target: str | None,
    filters: tuple[str, ...],
) -> None:
    """Publish dead letters to their original topics again.

    The subscription danube-redrive of the dead-letter topic acknowledges the letters that were published. Like any
    message, a letter is deleted once every subscription of its topic has acknowledged it and retention allows. If a run
    is interrupted, repeat it with the same options: nothing is published twice. Letters without an origin stay unless
    you pass --to.
    """
    wanted = Filter(filters, origin_needed=target is None)
    if agreement.dry_run:
        found = await _counted(client, topic, wanted, limit, target)
        total = sum(found.values())
        ways = ", ".join(f"{count:,} to {place}" for place, count in found.items())
        deed = f"publish {many(total, 'dead letter')} of {topic} again" + (f": {ways}" if ways else "")
        agreement.given(output, deed + _left(wanted), topic=topic, letters=total, targets=found, left=wanted.strangers)
        return
    most = await _backlog(client, topic)
    most = most if limit is None else min(limit, most)
    if not agreement.given(output, f"publish up to {many(most, 'dead letter')} of {topic} again", topic=topic):
        return
    done = 0
    await client.admin.create_subscription(topic, SUBSCRIPTION, type="shared", start="earliest", options=OPTIONS)
    with progress(f"redriving {topic}", most) as advance:
        async with client.consumer(topic, subscription=SUBSCRIPTION, type="shared") as consumer:
            async for chunk in _letters(consumer, topic, wanted, limit, await _backlog(client, topic)):
                await _publish(client, consumer, chunk, target)
                done += len(chunk)
                advance(len(chunk))
    sentence = f"published {many(done, 'dead letter')} of {topic} again{_left(wanted)}"
    output.done(sentence, topic=topic, redriven=done, left=wanted.strangers)


def _left(wanted: Filter) -> str:
    return f"; {many(wanted.strangers)} without an origin left; use --to" if wanted.strangers else ""


async def _backlog(client: Client, topic: str) -> int:
    """How many letters were not redriven yet."""
    try:
        return int((await client.admin.describe_subscription(topic, SUBSCRIPTION))["backlog"])
    except SubscriptionNotFound:
        return how_many(await bounded_places(client, topic, "earliest", None))


async def _counted(client: Client, topic: str, wanted: Filter, limit: int | None, target: str | None) -> dict[str, int]:
    """How many letters would go where. Makes no subscription and acknowledges nothing."""
    found: dict[str, int] = {}
    if SUBSCRIPTION in [each["subscription"] for each in await client.admin.subscriptions(topic)]:
        async with client.consumer(topic, subscription=SUBSCRIPTION, type="shared") as consumer:
            async for chunk in _letters(consumer, topic, wanted, limit, await _backlog(client, topic)):
                _add(found, chunk, target)
        return found
    async for batch in stored(client, await bounded_places(client, topic, "earliest", None)):
        letters = [each for each in batch if wanted.has(each)]
        _add(found, letters if limit is None else letters[: limit - sum(found.values())], target)
    return found


def _add(found: dict[str, int], letters: list[Message], target: str | None) -> None:
    for letter in letters:
        place = target or letter.attributes[TOPIC]
        found[place] = found.get(place, 0) + 1


async def _letters(
    consumer: Consumer, topic: str, wanted: Filter, limit: int | None, backlog: int
) -> AsyncIterator[list[Message]]:
    """Those that were not redriven yet, in chunks that are the same whenever nothing was acknowledged in between.

    No more are looked at than there were: what is published again may fail again at once, and come back as a letter.
    """
    chunk: list[Message] = []
    given = held = 0
    while backlog and (limit is None or given + len(chunk) < limit):
        try:
            letter = await consumer.receive(SILENCE_SECONDS)
        except NothingReceived:
            if held >= UNACKED_MAX or await nothing_left(consumer, topic, held):
                break
            continue
        backlog -= 1
        held += 1
        if wanted.has(letter):
            chunk.append(letter)
        if len(chunk) == CHUNK:
            yield chunk
            given += CHUNK
            held -= CHUNK
            chunk = []
    if chunk:
        yield chunk


async def _publish(client: Client, consumer: Consumer, chunk: list[Message], target: str | None) -> None:
    """Acknowledges the letters when all of them are published."""
    ways: dict[str, list[Message]] = {}
    for letter in chunk:
        ways.setdefault(target or letter.attributes[TOPIC], []).append(letter)
    for place, letters in ways.items():
        await _publish_to(client, place, letters)
    for acks in dict.fromkeys(consumer.ack(letter) for letter in chunk):
        await acks


async def _publish_to(client: Client, place: str, letters: list[Message]) -> None:
    """The producer's name stands for exactly these letters, so that the same ones are known when they come again.

    But for topics with partitions, which `--to` may name: there the key says which one, and each has its own numbers.
    """
    found = await client.topic(place)
    numbered = found.reliable and not found.partitions
    offsets = " ".join(f"{letter.partition}:{letter.offset}" for letter in letters)
    name = f"redrive-{sha256(f'{letters[0].topic} {offsets}'.encode()).hexdigest()[:32]}" if numbered else None
    async with client.producer(place, name=name, reliable=found.reliable, create=False) as producer:
        sent = []
        for number, letter in enumerate(letters):
            own = {name: text for name, text in letter.attributes.items() if name not in OWN}
            options: dict[str, Any] = {
                "key": letter.key_bytes,
                "attributes": own or None,
                "event_time": letter.event_time,
            }
            if numbered:
                options["sequence"] = number
            if producer.busy:
                await producer.ready()
            sent.append(producer.send(letter.payload, **options))
        for each in sent:
            await each
