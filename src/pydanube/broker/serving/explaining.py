"""Explains to people and programs why a message is not delivered, or a consumer gets nothing.

A core knows causes and its own time; this module turns them into sentences with the time of day and the commands that
help.
"""

from __future__ import annotations

from shlex import quote
from typing import NamedTuple

from pydanube.access.principals import Principal
from pydanube.access.rights import Action
from pydanube.base.errors import DanubeError, RequestInvalid, SubscriptionNotFound
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import EXPLAINED_IN_WORDS_MAX
from pydanube.base.names import TopicName
from pydanube.base.units import shown_when
from pydanube.base.wording import many
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.state.options import dead_letter_topic
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.subscription.read_failures import DAMAGE, in_words
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.explain import Cause as Why
from pydanube.dispatch.explain import Explanation
from pydanube.ports.clock import Clock


class PartitionExplanation(NamedTuple):
    """The explanation for one partition, or for a topic that is not partitioned."""

    partition: int | None
    offset: int | None  # of the message in question
    code: str | None  # the cause, for programs; None if there is nothing to deliver
    until: int | None  # when the cause ends without action, in microseconds since 1970
    sentence: str
    backlog: int  # messages that are not done
    total: int  # messages since the subscription's start


async def explain(
    topics: OpenTopics,
    clock: Clock,
    principal: Principal,
    topic: str,
    subscription: str,
    *,
    offset: int | None = None,
    consumer: int | None = None,
) -> list[PartitionExplanation]:
    """Explains a message, a consumer, or, if neither is named, the first unfinished message of each partition."""
    if offset is not None and consumer is not None:
        raise RequestInvalid("give either an offset or a consumer to explain, not both")
    asked = (principal, Action.SUBSCRIPTION_DESCRIBE, topic)
    if offset is not None or consumer is not None:
        partitions = [await topics.open(*asked, subscription=subscription)]
    else:
        partitions = await topics.open_all(*asked, subscription=subscription)
    stored = [each.topic.as_reliable("is not reliable: only waiting consumers get its messages") for each in partitions]
    explanations = [
        await _explain(clock, each, topic, host, offset, consumer)
        for each, topic in zip(partitions, stored, strict=True)
        if (host := topic.subscriptions.get(subscription)) is not None
    ]
    if not explanations:
        raise SubscriptionNotFound(f"subscription {subscription!r} does not exist")
    return explanations


async def _explain(
    clock: Clock, opened: OpenTopic, topic: Topic, host: SubscriptionHost, offset: int | None, consumer: int | None
) -> PartitionExplanation:
    backlog, total = host.backlog, topic.ledger.confirmed_end - min(host.floor, host.known.start)
    if consumer is not None:
        found = host.explain_consumer(ConsumerId(consumer))
    elif offset is None and not backlog:
        sentence = f"Nothing to do: {total} of {total} acknowledged."
        return PartitionExplanation(opened.name.partition, None, None, None, sentence, backlog, total)
    else:
        offset = host.floor if offset is None else offset
        found = await _of_offset(topic, host, offset)
    now = clock.wall()
    until = None if found.until is None else found.until - host.now + now
    sentence = _sentence(found, "" if until is None else shown_when(until, now), opened.name, host)
    return PartitionExplanation(opened.name.partition, offset, found.cause.code, until, sentence, backlog, total)


async def _of_offset(topic: Topic, host: SubscriptionHost, offset: int) -> Explanation:
    """Reads the message if the subscription has not done so yet, because it may be damaged."""
    found, ledger = host.explain(offset), topic.ledger
    if found.cause not in (Why.ACKED, Why.BELOW_START, Why.NOT_PUBLISHED, Why.IN_FLIGHT, Why.UNREADABLE):
        try:
            await ledger.read(ledger.past_lost(offset), 1)
        except DAMAGE as error:
            return Explanation(Why.UNREADABLE, what=in_words(error))
        except DanubeError:
            return host.explain(offset)
    return found


def _sentence(found: Explanation, until: str, topic: TopicName, host: SubscriptionHost) -> str:
    """The sentence for people. A poison message needs a decision, so it names a command that loses no other message."""
    said, name = found.render(until), host.name
    alter = f"danube subscription alter {topic.whole} {quote(name)}"
    if found.cause is Why.POISON_STUCK:
        return f"{said} The broker keeps trying; `{alter}` changes what happens to it."
    if found.cause is not Why.POISON_BLOCKS or found.offset is None:
        return said
    target = dead_letter_topic(topic, name)
    aside = f"`{alter} --option failure.poison=dead_letter --option failure.dead_letter_topic={target}`"
    if found.offset > host.floor:  # skipping up to it would lose other messages too
        return f"{said} Set it aside with {aside}."
    skip = f"danube subscription skip {topic} {quote(name)} --before {found.offset + 1}"
    return f"{said} Skip it with `{skip}`, or set it aside with {aside}."


def summary(explanations: list[PartitionExplanation]) -> str:
    """All partitions in one text, which fits into an answer: those without a backlog, and all but the first of the
    others, are only counted."""
    if len(explanations) == 1:
        return explanations[0].sentence
    total, backlog = sum(each.total for each in explanations), sum(each.backlog for each in explanations)
    if not backlog:
        return f"Nothing to do: {total} of {total} acknowledged."
    waiting = [
        f"Partition {each.partition}, offset {each.offset}: {each.sentence}" for each in explanations if each.backlog
    ]
    named, others = waiting[:EXPLAINED_IN_WORDS_MAX], len(waiting[EXPLAINED_IN_WORDS_MAX:])
    more = [f"There are messages to do in {many(others, 'other partition')}."] if others else []
    return " ".join([f"{backlog} of {total} messages to do.", *named, *more])
