"""`danube dlq`: messages that a subscription gave up, and their way back.

A dead letter says in its attributes where it comes from. The broker publishes it there again, with its key and its own
attributes, and acknowledges it in a subscription of the dead-letter topic, so that it is not done twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import click

from pydanube.base.errors import SubscriptionNotFound
from pydanube.base.limits import LISTED_MAX, OFFSET_MAX, REFUSALS_NAMED_MAX
from pydanube.cli.commands.subscription import described as subscription_of
from pydanube.cli.shell import values
from pydanube.cli.shell.lazy import Noun
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import many, pairs
from pydanube.cli.text.messages import described, with_escapes
from pydanube.cli.text.output import Agreement, Output, destructive, printed, progress
from pydanube.cli.text.reading import bounded_places, how_many, stored
from pydanube.client import Client, Message

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
CHUNK = LISTED_MAX  # letters in one request

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

    def __init__(self, texts: Sequence[str]) -> None:
        self.wanted = pairs(texts, "a filter")
        if "topic" in self.wanted:
            self.wanted["topic"] = values.topic(self.wanted["topic"])

    def has(self, letter: Message) -> bool:
        return all(self._holds(letter, name, text) for name, text in self.wanted.items())

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
    is interrupted, repeat it: nothing is published twice, even if other letters arrived meanwhile. Letters without
    an original topic stay unless you pass --to. Letters that their topic refuses stay too, and are listed.
    """
    asked: dict[str, Any] = {"filter": Filter(filters).wanted, **({} if target is None else {"to": target})}
    if agreement.dry_run:
        found = Redriven()
        async for part in _redrive(client, topic, limit, {**asked, "dry_run": True}):
            found.add(part)
        ways = ", ".join(f"{count:,} to {place}" for place, count in found.targets.items())
        deed = f"publish {many(found.count, 'dead letter')} of {topic} again" + (f": {ways}" if ways else "")
        about = {"letters": found.count, "targets": found.targets, **found.left_over}
        agreement.given(output, deed + found.left_text, topic=topic, **about)
        return
    most = await _backlog(client, topic)
    most = most if limit is None else min(limit, most)
    if not agreement.given(output, f"publish up to {many(most, 'dead letter')} of {topic} again", topic=topic):
        return
    done = Redriven()
    with progress(f"redriving {topic}", most) as advance:
        async for part in _redrive(client, topic, limit, asked):
            done.add(part)
            advance(part["redriven"])
    sentence = f"published {many(done.count, 'dead letter')} of {topic} again{done.left_text}"
    output.done(sentence, topic=topic, redriven=done.count, **done.left_over)


@dataclass
class Redriven:
    """What all answers say together."""

    count: int = 0
    targets: dict[str, int] = field(default_factory=dict)
    left: int = 0
    refused: int = 0
    refusals: list[dict[str, Any]] = field(default_factory=list)

    def add(self, answer: dict[str, Any]) -> None:
        self.count += answer["redriven"]
        self.left += answer["left"]
        self.refused += answer["refused"]
        self.refusals = [*self.refusals, *answer["refusals"]][:REFUSALS_NAMED_MAX]
        for place, count in answer["targets"].items():
            self.targets[place] = self.targets.get(place, 0) + count

    @property
    def left_over(self) -> dict[str, Any]:
        return {"left": self.left, "refused": self.refused, "refusals": self.refusals}

    @property
    def left_text(self) -> str:
        text = f"; {many(self.left)} without an original topic stay; use --to" if self.left else ""
        if self.refused:
            named = "; ".join(f"offset {each['offset']} to {each['topic']}: {each['error']}" for each in self.refusals)
            rest = self.refused - len(self.refusals)
            more = f"; and {rest:,} more" if rest else ""
            text += f"; {many(self.refused, 'dead letter')} could not be published and stay ({named}{more})"
        return text


async def _backlog(client: Client, topic: str) -> int:
    """How many letters were not redriven yet."""
    try:
        return int((await client.admin.describe_subscription(topic, SUBSCRIPTION))["backlog"])
    except SubscriptionNotFound:
        return how_many(await bounded_places(client, topic, "earliest", None))


async def _redrive(
    client: Client, topic: str, limit: int | None, asked: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """The broker's answers, a slice of letters after the other.

    No more are looked at than there were: what is published again may fail again at once, and come back as a letter.
    """
    left = OFFSET_MAX if limit is None else limit
    for place, end in await bounded_places(client, topic, "earliest", None):
        start = place.offset
        while start < end and left:
            fields = {"topic": place.name, "limit": min(CHUNK, left), "start": start, "end": end, **asked}
            answer = await client.ask("dlq.redrive", fields)
            yield answer
            left -= answer["redriven"]
            start = end if answer["next"] is None else answer["next"]
