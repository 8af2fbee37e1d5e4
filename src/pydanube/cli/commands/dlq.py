"""`danube dlq`: inspects dead letters and publishes them again.

The attributes of a dead letter name its original topic. The broker publishes it there again, with its key and original
attributes, and acknowledges it in a subscription of the dead-letter topic, so that it is not published twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

import click
from msgspec.structs import asdict, replace

from pydanube.base.errors import SubscriptionNotFound
from pydanube.base.limits import LISTED_MAX, OFFSET_MAX, REFUSALS_NAMED_MAX
from pydanube.cli.commands.subscription import find_subscription
from pydanube.cli.messages.stored import count_messages, stored_batches, stored_ranges
from pydanube.cli.messages.text import PeekedMessage, escaped, peeked_message
from pydanube.cli.shell import values
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, prints, progress
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import many, pairs
from pydanube.client import Client, Message
from pydanube.operations.topics import Redrive, Redriven

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


class DeadLetter(PeekedMessage, kw_only=True):
    """A dead letter. What the broker wrote into its attributes is in fields instead."""

    original_topic: str | None
    original_subscription: str | None
    original_offset: int | str | None
    attempts: int | str | None
    reason: str | None
    redriven: bool


@dlq.command("peek", epilog="Example: danube dlq peek orders-dead --count 5")
@click.argument("topic", type=values.topic)
@click.option("--count", "-n", type=values.Integer(1, 10_000), default=10, show_default=True)
@filter_option
@prints(list[DeadLetter])
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
    rows = [_dead_letter(letter, was) for letter, was in zip(letters, redriven, strict=True)]
    shown = [{**row, "payload": escaped(letter.payload)} for row, letter in zip(rows, letters, strict=True)]
    output.rows(rows, COLUMNS, shown)


def _dead_letter(letter: Message, redriven: bool) -> DeadLetter:
    about = letter.attributes
    own = {name: text for name, text in about.items() if name not in LETTER_ATTRIBUTES}
    return DeadLetter(
        **asdict(replace(peeked_message(letter), attributes=own)),
        original_topic=about.get(TOPIC),
        original_subscription=about.get("x-original-subscription"),
        original_offset=_number(about.get("x-original-topic-offset")),
        attempts=_number(about.get("x-delivery-attempt")),
        reason=about.get("x-failure-reason"),
        redriven=redriven,
    )


def _number(text: str | None) -> int | str | None:
    """The number that the broker wrote. Any other text stays as it is: a producer can set these attributes too."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 20 else text


async def _redriven(client: Client, topic: str, letters: list[Message]) -> list[bool]:
    """Which letters the subscription has acknowledged. Only those above its floor must be asked for one by one."""
    known = await find_subscription(client, topic, SUBSCRIPTION)
    if known is None:
        return [False] * len(letters)
    partitions = dict((await client.topic(topic)).partition_names())
    floors = dict(zip(partitions, known.floors, strict=False))  # a new partition has none
    stands = [
        end - floor
        for floor, end in zip(known.floors, known.ends, strict=True)
        if floor is not None and end is not None
    ]
    scattered = sum(stands) > known.backlog  # some above a floor are acknowledged
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


class RedriveTotals(Redriven):
    """The totals of all answers."""

    topic: str
    dry_run: bool

    def add(self, answer: Redriven) -> None:
        self.redriven += answer.redriven
        self.left += answer.left
        self.refused += answer.refused
        self.refusals = [*self.refusals, *answer.refusals][:REFUSALS_NAMED_MAX]
        for name, count in answer.targets.items():
            self.targets[name] = self.targets.get(name, 0) + count

    @property
    def left_text(self) -> str:
        text = f"; {many(self.left)} without an original topic stay; use --to" if self.left else ""
        if self.refused:
            named = "; ".join(f"offset {each.offset} to {each.topic}: {each.error}" for each in self.refusals)
            rest = self.refused - len(self.refusals)
            more = f"; and {rest:,} more" if rest else ""
            text += f"; {many(self.refused, 'dead letter')} could not be published and stay ({named}{more})"
        return text


def _no_letters(topic: str, confirmation: Confirmation) -> RedriveTotals:
    return RedriveTotals(0, {}, 0, 0, [], None, topic, confirmation.dry_run)


@dlq.command("redrive", epilog="Example: danube dlq redrive orders-dead --filter subscription=billing --dry-run")
@click.argument("topic", type=values.topic)
@click.option("--limit", type=values.Integer(min=1), help="Maximum number of dead letters.")
@click.option("--to", "target", type=values.topic, help="Publish to this topic instead of the original ones.")
@filter_option
@prints(RedriveTotals)
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
    wanted = Redrive(topic, to=target, filter=Filter(filters).wanted, dry_run=confirmation.dry_run)
    if confirmation.dry_run:
        found = _no_letters(topic, confirmation)
        async for part in _redrive(client, wanted, limit):
            found.add(part)
        ways = ", ".join(f"{count:,} to {name}" for name, count in found.targets.items())
        action = f"publish {many(found.redriven, 'dead letter')} of {topic} again" + (f": {ways}" if ways else "")
        confirmation.ask(output, action + found.left_text, found)
        return
    most = await _backlog(client, topic)
    most = most if limit is None else min(limit, most)
    done = _no_letters(topic, confirmation)
    if not confirmation.ask(output, f"publish up to {many(most, 'dead letter')} of {topic} again", done):
        return
    with progress(f"redriving {topic}", most) as advance:
        async for part in _redrive(client, wanted, limit):
            done.add(part)
            advance(part.redriven)
    sentence = f"published {many(done.redriven, 'dead letter')} of {topic} again{done.left_text}"
    output.done(sentence, done)


async def _backlog(client: Client, topic: str) -> int:
    """How many letters have not been redriven yet."""
    try:
        return (await client.admin.describe_subscription(topic, SUBSCRIPTION)).backlog
    except SubscriptionNotFound:
        return count_messages(await stored_ranges(client, topic, "earliest", None))


async def _redrive(client: Client, wanted: Redrive, limit: int | None) -> AsyncIterator[Redriven]:
    """Yields the broker's answers, one slice of letters after the other.

    Stops at the current end: a letter that is published again may fail at once and come back as a new letter.
    """
    left = OFFSET_MAX if limit is None else limit
    for first, end in await stored_ranges(client, wanted.topic, "earliest", None):
        start = first.offset
        while start < end and left:
            part = replace(wanted, topic=first.name, limit=min(CHUNK, left), start=start, end=end)
            answer = await client.ask(part)
            yield answer
            left -= answer.redriven
            start = end if answer.next is None else answer.next
