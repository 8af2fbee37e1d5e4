"""Small helpers for texts that people read."""

from __future__ import annotations


def many(count: int, noun: str = "message") -> str:
    """`1 message`, `1,200 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
