"""The connected consumers of a subscription, and how many messages each has asked for. It never looks at messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from pydanube.base.errors import ConsumerNotFound, TooManyConsumers
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import CONSUMERS_MAX, PERMITS_MAX


class Member:
    """A connected consumer. Change its permits through the roster, which keeps their sum."""

    __slots__ = ("id", "permits", "timed")

    def __init__(self, consumer: ConsumerId) -> None:
        self.id = consumer
        self.permits = 0
        self.timed = True  # the ack timeout starts at delivery, not only when the program takes the message


M = TypeVar("M", bound=Member)


class Roster(Generic[M]):
    """Members in the order they joined, or as `rotate` left them; `permits` is the sum of their permits."""

    def __init__(self) -> None:
        self._members: dict[ConsumerId, M] = {}
        self.permits = 0

    def __iter__(self) -> Iterator[M]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def find(self, consumer: ConsumerId) -> M | None:
        return self._members.get(consumer)

    def get(self, consumer: ConsumerId) -> M:
        found = self._members.get(consumer)
        if found is None:
            raise ConsumerNotFound(f"consumer {consumer} does not exist")
        return found

    def check_room(self) -> None:
        if len(self._members) >= CONSUMERS_MAX:
            raise TooManyConsumers(f"{CONSUMERS_MAX} consumers")

    def add(self, member: M) -> None:
        self._members[member.id] = member

    def remove(self, consumer: ConsumerId) -> M | None:
        gone = self._members.pop(consumer, None)
        if gone is not None:
            self.permits -= gone.permits
        return gone

    def first(self) -> M | None:
        return next(iter(self._members.values()), None)

    def grant(self, consumer: ConsumerId, permits: int) -> None:
        member = self.get(consumer)
        added = max(0, min(permits, PERMITS_MAX - member.permits))
        member.permits += added
        self.permits += added

    def withdraw(self, consumer: ConsumerId) -> int:
        """Takes back all permits of the consumer; returns how many there were."""
        member = self.find(consumer)
        taken = 0 if member is None else member.permits
        if member is not None:
            self.spend(member, taken)
        return taken

    def spend(self, member: M, permits: int) -> None:
        member.permits -= permits
        self.permits -= permits

    def rotate(self, member: M) -> None:
        """Moves the member to the end."""
        self._members[member.id] = self._members.pop(member.id)

    def shares(self, total: int) -> list[tuple[M, int]]:
        """Splits up to `total` messages as equally as permits allow. Members take turns in getting the remainder."""
        takers = [member for member in self._members.values() if member.permits]
        total = min(total, self.permits)
        level, left = 0, len(takers)
        for permits in sorted([member.permits for member in takers]):  # raise the level until the total is used up
            if (permits - level) * left > total:
                level += total // left
                total %= left
                break
            total -= (permits - level) * left
            level = permits
            left -= 1
        shares = []
        for member in takers:
            share = min(member.permits, level)
            if total and member.permits > level:
                share += 1
                total -= 1
            if share:
                shares.append((member, share))
        if shares:
            self.rotate(shares[0][0])
        return shares
