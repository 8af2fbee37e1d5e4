"""Rules for prose: phrases that read like a translation, each with what to write instead.

A rule is a pattern and a suggestion. The patterns are narrow on purpose: a rule that complains about good English is
worse than a phrase that slips through.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

RULES: tuple[tuple[str, str], ...] = (
    (r"\bfor ever\b", "forever"),
    (r"\bshall\b", "must, will, or the imperative"),
    (r"\bbegin so\b|\bso long ago\b(?! that\b)", "this far back"),
    (r"\b(?:at most|the next|after) so many\b|\bso many (?:a second|times|rounds|messages)\b", "the number"),
    (r"\b(?:is|are|was|were) there already\b", "already exists"),
    (r"\bis no name of\b", "not a valid name"),
    (
        r"(?<!there )\bis no (?:valid|name|JSON|Base64|directory|producer|consumer|address|sequence|field|duration)\b",
        "is not a ...",
    ),
    (r"\b(?:is|are|was|were|has|have|can|may|will)(?: not|not) (?:\w+ ){0,3}any more\b", "no longer"),
    (r"\banew\b", "again, over"),
    (r"\bagain and again\b", "repeatedly"),
    (r"\bgoe?s? on (?:where|from|with|in|as|without|behind)\b", "continue(s)"),
    (r"\bsay (?:either )?--\w", "pass --flag"),
    (r"\bthe nearest is\b", "did you mean ...?"),
    (r"\bnobody is there\b", "no one ..., not a terminal"),
    (r"\bunless (?:told|said)\b", "by default"),
    (r"\bunless it is told otherwise\b", "by default"),
    (r"\bwhat is no (?:text|number)\b", "binary data"),
    (r"\bCorrect what the message names\b", "the page that explains it"),
    (r"\bmade by using it\b", "created on first use"),
    (r"\bwith troubles\b", "with problems"),
    (r"\bwhoever asks\b", "the caller"),
    (r"\bthat there are\b(?=\.|,|$)", "drop it"),
)
ANY = re.compile("|".join(pattern for pattern, _ in RULES), re.IGNORECASE)
COMPILED = tuple((re.compile(pattern, re.IGNORECASE), better) for pattern, better in RULES)

Complaint = tuple[int, str, str]  # line, the phrase, what to write instead


def complaints(text: str, line: int = 1) -> Iterator[Complaint]:
    """What is wrong with a piece of prose that begins at `line`. A phrase may run over the end of a line."""
    flat = re.sub(r"[ \t]*\n[ \t]*", "\n", text)
    joined = flat.replace("\n", " ")
    if ANY.search(joined) is None:
        return
    for pattern, better in COMPILED:
        for found in pattern.finditer(joined):
            yield line + flat.count("\n", 0, found.start()), found[0], better


def of_markdown(text: str) -> Iterator[Complaint]:
    """Of the prose of a page: fenced blocks and inline code say what programs say."""
    blank = re.sub(r"^([ \t]*)(`{3,}|~{3,}).*?^\1\2[ \t]*$", _lines_only, text, flags=re.DOTALL | re.MULTILINE)
    yield from complaints(re.sub(r"`[^`\n]+`", "`x`", blank))


def of_python(source: str) -> Iterator[Complaint]:
    """Of what people see of a program: its docstrings, and the sentences in its strings."""
    tree = ast.parse(source)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) not in inside and (text := _sentence(node)) is not None:
            yield from complaints(re.sub(r"`[^`\n]+`", "`x`", text), node.lineno)  # type: ignore[attr-defined]


def _sentence(node: ast.AST) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value else None


def _lines_only(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")
