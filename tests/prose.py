"""Rules for prose: phrases that read like a translation, each with what to write instead.

A rule is a pattern and a suggestion. The patterns are narrow on purpose: a rule that complains about good English is
worse than a phrase that slips through.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from io import StringIO
from tokenize import COMMENT, generate_tokens

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
# Applied only to what a program says: its errors, logs and help texts. Comments may be terser.
SPOKEN: tuple[tuple[str, str], ...] = (
    (r"(?<!there )\b(?:is|are) no (?!longer\b|more\b|other\b)[a-z]+", "is not a ..."),
    (r"\bcomes? twice\b|\b(?:is|are|would be) there twice\b", "is given twice"),
    (r"\bis \S+ meant\?", "did you mean ...?"),
    (r"\b(?:is|are) wanted\b", "expected ..., got ..."),
    (r"\bthere is no such\b", "unknown ..., or ... does not exist"),
    (r"\b(?:is|are) not taken\b", "is not allowed"),
    (r"\bexclude each other\b|\bdo(?:es)? not go with\b", "cannot be combined with"),
    (r", for there (?:is|are) no\b", ", because ... has no"),
    (r"\b(?:must be|is) a text\b", "must be a string"),
    (r"\b(?:is one of|is written) [^.;]*, not\b", "must be one of ..., got ..."),
    (r"; \{\} at most\b", "; the maximum is ..."),
    (r"\bthere is no(?:thing at| (?:verb|column|message)\b)", "unknown ..., or ... is missing"),
    (r"\bunless given\b", "by default"),
    (r"\b(?:is|are) meant\b(?! to\b)", "name the thing"),
    (r"\bfrom which on\b", "at which"),
    (r"\bcomes? with (?:query|batch)\b", "runs query ..., sent batch ..."),
)
# Applied to all that people read: pages, alerts, comments, docstrings, and what a program says.
READ: tuple[tuple[str, str], ...] = (
    (r"\bcomes? again\b", "is delivered again"),
    (r"\b(?:goes|went) on\b(?! (?:forever|and on)\b)|\bgo on\b", "continue(s)"),
    (r"(?<!clock )(?<!time )(?<!loop )\b(?:stands?|stood) still\b", "stops, waits, is blocked"),
    (r"\bhears? of\b", "is notified of, learns of"),
    (r"\bthere is a turn\b", "schedules a turn"),
    (
        r", for (?:there|it|they|this|these|that|those|nobody|no one) (?:is|are|was|has|have|can|cannot|may)\b",
        "because",
    ),
    (r"\bup to where\b", "the end of"),
    (r"\b(?:continues?|resumes?|reconnects?|recovers?|(?:re)?starts?) by (?:itself|themselves)\b", "automatically"),
    (r"\b(?:who|whom)ever\b|\b(?:some|no|any|every)body\b", "the client, the program, no one"),
    (r"\b(?:is|are) not there\b", "does not exist"),
    (r"\bof before\b", "earlier ..."),
    (r"\bmade again\b", "created again, rebuilt"),
    (r"\btaken away\b", "removed"),
    (r"\b(?:is|are) not heard of\b", "stopped reporting"),
    (r"\bin the manner of\b", "follows"),
    (r"\| an? [\w` ]+ (?:more|less) \|", "an added ..., a removed ..."),
)
# Applied to the beginning of a docstring, which is read on its own, without the name before it.
OPENING: tuple[tuple[str, str], ...] = (
    (r"^(?:Of|By (?:how|what|which)|That|To be)\b", "a verb, or a noun that says what it returns"),
)

Rules = tuple[tuple[str, str], ...]
Complaint = tuple[int, str, str]  # line, the phrase, what to write instead


def complaints(text: str, line: int = 1, rules: Rules = RULES) -> Iterator[Complaint]:
    """The complaints about a piece of prose that begins at `line`. A phrase may run over the end of a line."""
    flat = re.sub(r"[ \t]*\n[ \t]*", "\n", text)
    joined = flat.replace("\n", " ")
    any_of_them, each = _compiled(rules)
    if any_of_them.search(joined) is None:
        return
    for pattern, better in each:
        for found in pattern.finditer(joined):
            yield line + flat.count("\n", 0, found.start()), found[0], better


@cache
def _compiled(rules: Rules) -> tuple[re.Pattern[str], tuple[tuple[re.Pattern[str], str], ...]]:
    """One pattern for all rules, which quickly shows that nothing is wrong, and one for each rule."""
    together = re.compile("|".join(pattern for pattern, _ in rules), re.IGNORECASE)
    return together, tuple((re.compile(pattern, re.IGNORECASE), better) for pattern, better in rules)


def of_markdown(text: str, rules: Rules = RULES) -> Iterator[Complaint]:
    """Complaints about the prose of a page, without its fenced blocks, inline code and addresses of links."""
    blank = re.sub(r"^([ \t]*)(`{3,}|~{3,}).*?^\1\2[ \t]*$", _lines_only, text, flags=re.DOTALL | re.MULTILINE)
    yield from complaints(re.sub(r"\]\([^)\s]*\)", "]", _without_code(blank)), rules=rules)


def of_python(source: str) -> Iterator[Complaint]:
    """Complaints about what people read in a program: comments, docstrings, and the sentences in its strings."""
    for line, comment in _comments(source):
        yield from complaints(_without_code(comment), line, RULES + READ)
    tree = ast.parse(source)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) not in inside and (text := _sentence(node)) is not None:
            rules = RULES + READ + OPENING if id(node) in docstrings else RULES + SPOKEN + READ
            yield from complaints(_without_code(text), node.lineno, rules)  # type: ignore[attr-defined]


def said_by(source: str) -> Iterator[str]:
    """The sentences in a program's strings, with `{}` for each value that is filled in."""
    tree = ast.parse(source)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) not in inside and (text := _sentence(node)) is not None:
            yield re.sub(r"%(?:\.\d+)?[sdrfg]", "{}", text)


def _sentence(node: ast.AST) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value else None


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """The comments of a program with the lines where they begin. Lines that follow each other are one comment."""
    found: list[tuple[int, str]] = []
    end = -1
    for token in generate_tokens(StringIO(source).readline):
        if token.type != COMMENT:
            continue
        (line, column), text = token.start, token.string.lstrip("# ")
        if found and line == end + 1 and not token.line[:column].strip():
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{text}")
        else:
            found.append((line, text))
        end = line
    return iter(found)


def _without_code(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "`x`", text)


def _lines_only(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")
