"""Small helpers for texts that people read."""

from __future__ import annotations


def many(count: int, noun: str = "message") -> str:
    """`1 message`, `1,200 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def encodable(text: str) -> str:
    """The text without lone surrogates, such as those in the path of a file whose name is not UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
