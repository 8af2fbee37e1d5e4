"""Dead letters on their way back: published again to the topics they come from, and remembered as done.

They stay where they are; a subscription of the dead-letter topic, the same that the command line uses, knows which were
published. Each group of letters has a producer name of its own: repeated after a crash, it is published once.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from pydanube.base.errors import RequestInvalid
from pydanube.base.limits import READ_AHEAD_BYTES, REDELIVERIES_MAX, UNACKED_MAX
from pydanube.base.ranges import Ranges
from pydanube.broker.dead_letter import ADDED, ORIGIN
from pydanube.broker.holds import Opened, Principal
from pydanube.broker.options import SubscriptionOptions
from pydanube.broker.subscription import SubscriptionHost
from pydanube.broker.topic import EARLIEST, Topic
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.ledger.state_records import SubscriptionKind
from pydanube.wire.batch import Message, build

if TYPE_CHECKING:
    from pydanube.broker.service import Service

SUBSCRIPTION = "danube-redrive"
_OPTIONS = SubscriptionOptions(
    FailurePolicy(ack_timeout=None, max_redelivery_count=REDELIVERIES_MAX), DispatchSettings(unacked_max=UNACKED_MAX)
)


async def redrive(service: Service, principal: Principal, opened: Opened, limit: int) -> int:
    """The next `limit` letters that were not published again yet; says how many there were."""
    topic = service.reliable(opened)
    host = await service.enter(opened, SUBSCRIPTION, SubscriptionKind.SHARED, EARLIEST, _OPTIONS)
    assert isinstance(host, SubscriptionHost)
    done = 0
    while done < limit:
        generation = host.known.cursor.generation
        letters = await _next_letters(topic, host, limit - done)
        if not letters:
            break
        for origin, group in _by_origin(opened, letters).items():
            await _publish(service, principal, origin, group, str(opened.name))
        finished = Ranges()
        for letter in letters:
            finished.add(letter.offset, letter.offset)
        await host.ack(generation, list(finished))
        done += len(letters)
    return done


async def _next_letters(topic: Topic, host: SubscriptionHost, most: int) -> list[Message]:
    """Those that are not done, up to about a MiB: the same ones whenever the same are done, however they are stored."""
    ledger, cursor = topic.ledger, host.known.cursor
    found: list[Message] = []
    size, offset = 0, max(cursor.floor, ledger.first)
    while (offset := cursor.above.next_missing(offset)) < ledger.confirmed_end:
        for batch in await ledger.read(offset):
            for first, last in cursor.pending(max(offset, batch.base_offset), batch.last_offset):
                count = min(last - first + 1, most - len(found))
                for letter in batch.slice(first - batch.base_offset, count).messages():
                    found.append(letter)
                    size += len(letter.payload or b"")
                    if len(found) == most or size >= READ_AHEAD_BYTES:
                        return found
            offset = batch.last_offset + 1
    return found


def _by_origin(opened: Opened, letters: list[Message]) -> dict[str, list[Message]]:
    groups: dict[str, list[Message]] = {}
    for letter in letters:
        origin = (letter.attributes or {}).get(ORIGIN)
        if origin is None:
            raise RequestInvalid(
                f"message {letter.offset} of {opened.name} does not say where it comes from; skip it in {SUBSCRIPTION}"
            )
        groups.setdefault(origin, []).append(letter)
    return groups


async def _publish(service: Service, principal: Principal, origin: str, letters: list[Message], source: str) -> None:
    target = await service.open(principal, origin)
    offsets = " ".join(str(letter.offset) for letter in letters)
    name = f"redrive-{sha256(f'{source} {offsets}'.encode()).hexdigest()[:32]}"
    session = await service.reliable(target).attach(name)
    own = [
        {name: text for name, text in (letter.attributes or {}).items() if name not in ADDED} or None
        for letter in letters
    ]
    batch = build(
        [letter.payload for letter in letters],
        publish_time=service.surroundings.clock.wall(),
        keys=[letter.key for letter in letters],
        event_times=[letter.event_time for letter in letters],
        attributes=own,
        schema_ids=[letter.schema_id for letter in letters],
        schema_versions=[letter.schema_version for letter in letters],
        producer_id=session.producer,
        first_sequence=0,
    )
    await target.publish(batch, session.epoch).confirmed
