"""Every pattern takes as long as the text is: hostile texts are made out of each pattern, so new ones are covered.

Whoever can send a text can send the one that a pattern is slowest at. So each of them is held against texts that fit
it up to one of its repeats, go on with what that repeat takes thousands of times, and end in what cannot be.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]
from time import process_time
from typing import Any

import pytest

import pydanube

SIZES = (20, 300, 2_000, 10_000)  # so that what grows fast is found while it still ends
SECONDS_MAX = 0.004  # of the processor, for a short text
SECONDS_PER_CHARACTER_MAX = 0.000_002_5  # what grows with the length takes a fifth of it
MEASURED_MAX = 3  # times, since a machine that does much else makes a few longer
RUNS = (
    "a",
    "A",
    "0",
    " ",
    "\t",
    "_",
    "-",
    ".",
    ":",
    "/",
    "%",
    "*",
    "'",
    '"',
    "\\",
    "`",
    "[",
    "a ",
    "a.",
    "a:",
    "0 a ",
    "1s",
)
ENDS = ("", "\x01", "\n")
METHODS = {"match", "fullmatch", "search", "sub", "split", "finditer", "findall"}
WORK = {
    "sub": lambda pattern, text: pattern.sub(text[:0], text),
    "finditer": lambda pattern, text: sum(1 for _ in pattern.finditer(text)),
}


# -- every pattern, and how it is used ---------------------------------------------------------------------------------


def modules() -> Iterator[tuple[str, Path]]:
    for found in pkgutil.walk_packages(pydanube.__path__, "pydanube."):
        spec = found.module_finder.find_spec(found.name, None)  # type: ignore[call-arg]
        if spec is not None and spec.origin is not None:
            yield found.name, Path(spec.origin)


@cache
def nodes() -> list[tuple[str, ast.Attribute | ast.Call]]:
    trees = [(name, ast.parse(path.read_bytes())) for name, path in modules()]
    return [
        (name, node) for name, tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Call)
    ]


@cache
def used() -> dict[tuple[str, str], set[str]]:
    """What is asked of a pattern, by its module and name; those that others may use too are of the module ""."""
    found: dict[tuple[str, str], set[str]] = {}
    for module, node in nodes():
        if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.value, ast.Name):
            name = node.value.id
            found.setdefault((module if name.startswith("_") else "", name), set()).add(node.attr)
    return found


def compiled() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    for name, path in modules():
        if b"re.compile(" in path.read_bytes():
            for own, value in vars(importlib.import_module(name)).items():
                if isinstance(value, re.Pattern):
                    for method in sorted(used().get((name if own.startswith("_") else "", own), METHODS)):
                        yield f"{name}.{own}.{method}", value, method


def written_in_place() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """`re.search("...", text)` and the like."""
    for name, node in nodes():
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[ast.Constant(value=text), _, *_]
            ) if method in METHODS:
                yield f"{name}:{node.lineno}.{method}", re.compile(text), method


# -- texts that fit up to one of its repeats ---------------------------------------------------------------------------


def example(items: Any) -> str:
    """A text that fits, if it need not be looked behind or ahead for."""
    return "".join(one(*item) for item in items)


def one(code: Any, given: Any) -> str:
    match str(code):
        case "LITERAL":
            return chr(given)
        case "NOT_LITERAL" | "ANY" | "IN" | "CATEGORY":
            return next((each for each in RUNS if fits(code, given, each)), "a")
        case "SUBPATTERN":
            return example(given[3])
        case "ATOMIC_GROUP":
            return example(given)
        case "BRANCH":
            return example(given[1][0])
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return example(given[2]) * max(given[0], 1)
    return ""


def fits(code: Any, given: Any, text: str) -> bool:
    if len(text) != 1:
        return False
    match str(code):
        case "LITERAL":
            return chr(given) == text
        case "NOT_LITERAL":
            return chr(given) != text
        case "ANY":
            return True
        case "RANGE":
            return given[0] <= ord(text) <= given[1]
        case "CATEGORY":
            kinds = {"SPACE": r"\s", "WORD": r"\w", "DIGIT": r"\d"}
            kind = str(given).removeprefix("CATEGORY_")
            return bool(re.match(kinds[kind.removeprefix("NOT_")], text)) != kind.startswith("NOT_")
        case "IN":
            negated = str(given[0][0]) == "NEGATE"
            return any(fits(*each, text) for each in given[negated:]) != negated
    return False


def beginnings(items: Any, before: str = "") -> Iterator[str]:
    """What comes before each repeat, and a run of what it repeats is yet to come."""
    for code, given in items:
        match str(code):
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                yield before
                yield before + example(given[2])
                yield from beginnings(given[2], before)
            case "SUBPATTERN":
                yield from beginnings(given[3], before)
            case "ATOMIC_GROUP":
                yield from beginnings(given, before)
            case "ASSERT" | "ASSERT_NOT":
                yield from beginnings(given[1], before)
            case "BRANCH":
                for branch in given[1]:
                    yield from beginnings(branch, before)
                    yield before + example(branch)
        before += one(code, given)
    yield before


def runs(items: Any) -> Iterator[str]:
    """What it is made of: each character and word that it may repeat."""
    yield from RUNS
    yield example(items)
    for code, given in items:
        match str(code):
            case "LITERAL":
                yield chr(given)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                yield example(given[2])
            case "BRANCH":
                yield from [example(branch) for branch in given[1]]


def hostile(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    parsed = _parser.parse(text, pattern.flags & ~re.UNICODE)
    for begin in dict.fromkeys(["", *beginnings(parsed)]):
        for run in dict.fromkeys(each for each in runs(parsed) if each):
            for end in ENDS:
                yield begin, run, end


def slow(pattern: re.Pattern[Any], method: str) -> str | None:
    work = WORK.get(method) or (lambda pattern, text: getattr(pattern, method)(text))
    texts = list(hostile(pattern))
    for size in SIZES:
        for begin, run, end in texts:
            text: Any = begin + run * (size // len(run)) + end
            if isinstance(pattern.pattern, bytes):
                text = text.encode("latin-1", "replace")
            most = SECONDS_MAX + SECONDS_PER_CHARACTER_MAX * len(text)
            took = most + 1
            for _ in range(MEASURED_MAX):
                since = process_time()
                work(pattern, text)
                took = min(took, process_time() - since)
                if took < most:
                    break
            else:
                return f"{took:.2f} s for {begin!r} + {run!r} times {size // len(run)} + {end!r}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "method"),
    [pytest.param(pattern, method, id=name) for name, pattern, method in [*compiled(), *written_in_place()]],
)
def test_a_pattern_takes_as_long_as_the_text_is(pattern: re.Pattern[Any], method: str) -> None:
    assert slow(pattern, method) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "method"),
    [
        (r"(\w+):[ \t]*([\t\x20-\x7e]*?)[ \t]*", "fullmatch"),
        (r"([\w.-]*(?:secret|token)[\w.-]*)\s*=", "search"),
        (r"(a+)+b", "match"),
        (r"[a-z]+://", "search"),
        (r"(.+\.py):x", "search"),
    ],
)
def test_one_that_takes_longer_is_found(text: str, method: str) -> None:
    assert slow(re.compile(text), method) is not None
