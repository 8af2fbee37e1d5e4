"""What every parsed schema can do, and the values that it answers with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from pydanube.schema.kinds import SchemaType


class Break(NamedTuple):
    """A place where what was written with one schema cannot be read with another."""

    path: str  # such as `items[].price`; empty for the whole
    reason: str  # a sentence without a full stop

    def within(self, step: str) -> Break:
        return Break(join(step, self.path), self.reason)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class Fault(NamedTuple):
    """What is wrong with one payload of a batch."""

    payload: int  # its number in the batch, from 0
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


def join(step: str, path: str) -> str:
    """`a` and `b` are `a.b`; `a` and `[]` are `a[]`, and so with `{}`."""
    return f"{step}{'.' if step and path and path[0] not in '[{' else ''}{path}"


class Schema(ABC):
    """A definition that was parsed. It never changes, so threads can share it."""

    type: ClassVar[SchemaType]

    @abstractmethod
    def breaks_reading(self, written: Any) -> list[Break]:
        """Every place where payloads of the schema `written`, of the same type, cannot be read with this one."""

    def breaks_replacing(self, older: Any) -> list[Break]:
        """Every place where this schema may not follow `older`, in whichever direction payloads are read."""
        return []

    @abstractmethod
    def faults(self, payloads: Iterable[bytes]) -> list[Fault]:
        """The payloads that do not fit, each with its first fault."""
