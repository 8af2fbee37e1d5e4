"""`danube dlq`: inspects dead letters and publishes them again.

The attributes of a dead letter name its original topic. The broker publishes it there again, with its key and original
attributes, and acknowledges it in a subscription of the dead-letter topic, so that it is not published twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import click

from pydanube.base.errors import SubscriptionNotFound
from pydanube.base.limits import LISTED_MAX, OFFSET_MAX, REFUSALS_NAMED_MAX
from pydanube.cli.commands.subscription import find_subscription
from pydanube.cli.messages.stored import count_messages, stored_batches, stored_ranges
from pydanube.cli.messages.text import escaped, message_fields
from pydanube.cli.shell import values
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, output_option, progress
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import many, pairs
from pydanube.client import Client, Message

SUBSCRIPTION = "danube-redrive"  # of a dead-letter topic: has acknowledged the letters that were published again
TOPIC = "x-original-topic"
LETTER_ATTRIBUTES = frozenset(
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
ACKNOWLEDGED = "It was acknowledged or skipped."  # the broker's explanation
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
CHUNK = LISTED_MAX  # letters per request

filter_option = click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="NAME=VALUE",
    help="Only dead letters that match: topic=, subscription=, reason= (a substring), key=, or an attribute.",
)


@click.group(cls=CommandGroup, epilog="Example: danube dlq peek orders-dead")
def dlq() -> None:
    """Inspect dead letters and publish them again."""


@dlq.command("peek", epilog="Example: danube dlq peek orders-dead --count 5")
@click.argument("topic", type=values.topic)
@click.option("--count", "-n", type=values.Integer(1, 10_000), default=10, show_default=True)
@filter_option
@output_option
@connected
async def peek(client: Client, output: Output, topic: str, count: int, filters: tuple[str, ...]) -> None:
    """Show dead letters: their origin, why they were set aside, and whether they were published again."""
    wanted = Filter(filters)
    letters: list[Message] = []
    async for batch in stored_batches(client, await stored_ranges(client, topic, "earliest", None)):
        letters += [each for each in batch if wanted.matches(each)][: count - len(letters)]
        if len(letters) == count:
            break
    redriven = await _redriven(client, topic, letters)
    rows = [_row(letter, was, for_people=output.for_people) for letter, was in zip(letters, redriven, strict=True)]
    output.rows(rows, COLUMNS)


def _row(letter: Message, redriven: bool, *, for_people: bool) -> dict[str, Any]:
    found = message_fields(letter)
    about = found["attributes"]
    found["attributes"] = {name: text for name, text in about.items() if name not in LETTER_ATTRIBUTES}
    if for_people:
        found["payload"] = escaped(letter.payload)
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
    """The number that the broker wrote. Any other text stays as it is: a producer can set these attributes too."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 20 else text


async def _redriven(client: Client, topic: str, letters: list[Message]) -> list[bool]:
    """Which letters the subscription has acknowledged. Only those above its floor must be asked for one by one."""
    known = await find_subscription(client, topic, SUBSCRIPTION)
    if known is None:
        return [False] * len(letters)
    partitions = dict((await client.topic(topic)).partition_names())
    floors = dict(zip(partitions, known["floors"], strict=False))  # a new partition has none
    stands = [(floor, end) for floor, end in zip(known["floors"], known["ends"], strict=True) if floor is not None]
    scattered = sum(end - floor for floor, end in stands) > known["backlog"]  # some above a floor are acknowledged
    found = []
    for letter in letters:
        floor = floors.get(letter.partition)
        done = floor is not None and letter.offset < floor
        if scattered and not done and floor is not None:
            partition = partitions[letter.partition]
            done = await client.admin.explain(partition, SUBSCRIPTION, offset=letter.offset) == ACKNOWLEDGED
        found.append(done)
    return found


class Filter:
    """Selects dead letters that meet all conditions."""

    _NAMES: ClassVar = {"topic": TOPIC, "subscription": "x-original-subscription"}

    def __init__(self, texts: Sequence[str]) -> None:
        self.wanted = pairs(texts, "a filter")
        if "topic" in self.wanted:
            self.wanted["topic"] = values.topic(self.wanted["topic"])

    def matches(self, letter: Message) -> bool:
        return all(self._meets(letter, name, text) for name, text in self.wanted.items())

    def _meets(self, letter: Message, name: str, text: str) -> bool:
        if name == "key":
            return letter.key == text
        if name == "reason":
            return text in letter.attributes.get("x-failure-reason", "")
        return letter.attributes.get(self._NAMES.get(name, name)) == text


@dlq.command("redrive", epilog="Example: danube dlq redrive orders-dead --filter subscription=billing --dry-run")
@click.argument("topic", type=values.topic)
@click.option("--limit", type=values.Integer(min=1), help="Maximum number of dead letters.")
@click.option("--to", "target", type=values.topic, help="Publish to this topic instead of the original ones.")
@filter_option
@output_option
@destructive
@connected
async def redrive(
    client: Client,
    output: Output,
    confirmation: Confirmation,
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
    if confirmation.dry_run:
        found = RedriveTotals()
        async for part in _redrive(client, topic, limit, {**asked, "dry_run": True}):
            found.add(part)
        ways = ", ".join(f"{count:,} to {name}" for name, count in found.targets.items())
        action = f"publish {many(found.count, 'dead letter')} of {topic} again" + (f": {ways}" if ways else "")
        about = {"letters": found.count, "targets": found.targets, **found.left_over}
        confirmation.ask(output, action + found.left_text, topic=topic, **about)
        return
    most = await _backlog(client, topic)
    most = most if limit is None else min(limit, most)
    if not confirmation.ask(output, f"publish up to {many(most, 'dead letter')} of {topic} again", topic=topic):
        return
    done = RedriveTotals()
    with progress(f"redriving {topic}", most) as advance:
        async for part in _redrive(client, topic, limit, asked):
            done.add(part)
            advance(part["redriven"])
    sentence = f"published {many(done.count, 'dead letter')} of {topic} again{done.left_text}"
    output.done(sentence, topic=topic, redriven=done.count, **done.left_over)


@dataclass
class RedriveTotals:
    """The totals of all answers."""

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
        for name, count in answer["targets"].items():
            self.targets[name] = self.targets.get(name, 0) + count

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
    """How many letters have not been redriven yet."""
    try:
        return int((await client.admin.describe_subscription(topic, SUBSCRIPTION))["backlog"])
    except SubscriptionNotFound:
        return count_messages(await stored_ranges(client, topic, "earliest", None))


async def _redrive(
    client: Client, topic: str, limit: int | None, asked: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Yields the broker's answers, one slice of letters after the other.

    Stops at the current end: a letter that is published again may fail at once and come back as a new letter.
    """
    left = OFFSET_MAX if limit is None else limit
    for first, end in await stored_ranges(client, topic, "earliest", None):
        start = first.offset
        while start < end and left:
            fields = {"topic": first.name, "limit": min(CHUNK, left), "start": start, "end": end, **asked}
            answer = await client.ask("dlq.redrive", fields)
            yield answer
            left -= answer["redriven"]
            start = end if answer["next"] is None else answer["next"]
