"""Help texts, errors, logs, comments and pages avoid the phrases of `prose.py`, which read like a translation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import prose

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "pydanube"
FOLDERS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DEPLOYED = sorted(ROOT.glob("deploy/*/*"))


def told(path: Path, found: list[prose.Complaint]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{line}: {phrase!r}; write: {better}" for line, phrase, better in found]


def test_pages_are_in_plain_english() -> None:
    complaints: list[str] = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        if path.name == "CHANGELOG.md":
            text = "## ".join(re.split(r"^## ", text, flags=re.MULTILINE)[:2])  # what was released stays as it was
        complaints += told(path, list(prose.of_markdown(text, prose.RULES + prose.READ)))
    assert complaints == [], "\n".join(complaints)


def test_alerts_and_dashboards_are_in_plain_english() -> None:
    complaints: list[str] = []
    for path in DEPLOYED:
        rules = prose.RULES + prose.SPOKEN + prose.READ
        complaints += told(path, list(prose.complaints(path.read_text(encoding="utf-8"), rules=rules)))
    assert complaints == [], "\n".join(complaints)


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_the_program_says_is_in_plain_english(folder: str) -> None:
    complaints: list[str] = []
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        complaints += told(path, list(prose.of_python(path.read_text(encoding="utf-8"))))
    assert complaints == [], "\n".join(complaints)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("It is kept for ever.", "for ever"),
        ("It goes on\nwhere it was.", "goes on where"),
        ("A topic shall have one.", "shall"),
        ("The name\nis there already.", "is there already"),
        ("It is not needed any more.", "is not needed any more"),
    ],
)
def test_a_translated_phrase_is_found_over_the_end_of_a_line(text: str, phrase: str) -> None:
    assert [found for _, found, _ in prose.of_markdown(text)] == [phrase]


def test_the_line_of_a_phrase_is_named() -> None:
    assert [line for line, _, _ in prose.of_markdown("# Title\n\nGood.\nKept for\never.\n")] == [4]


def test_code_is_not_prose() -> None:
    assert list(prose.of_markdown("`say --yes`\n\n```sh\nshall\n```\n")) == []
    assert list(prose.of_python("shall = 1  # a name: `shall`, not a text\n")) == []
    assert [phrase for _, phrase, _ in prose.of_python("raise ValueError(f'{name} shall not pass')")] == ["shall"]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("{x} is no position", "is no position"),
        ("the name comes twice", "comes twice"),
        ("unknown key; is topic meant?", "is topic meant?"),
        ("a number is wanted, not {x}", "is wanted"),
        ("the name must be a text", "must be a text"),
        ("order is one of stop, start, not {x}", "is one of stop, start, not"),
        ("the key has {x} bytes; {y} at most", "; {} at most"),
        ("there is no verb {x}", "there is no verb"),
        ("those that are meant", "are meant"),
    ],
)
def test_what_a_program_says_is_held_to_more_rules(text: str, phrase: str) -> None:
    assert [found for _, found, _ in prose.of_python(f"raise ValueError(f{text!r})")] == [phrase]
    assert list(prose.of_python(f"def f():\n    {text!r}\n")) == []


def test_a_program_may_say_that_something_is_missing() -> None:
    for text in ("there is no room", "it is no longer served", "there are no more messages"):
        assert list(prose.of_python(f"raise ValueError({text!r})")) == []


@pytest.mark.parametrize(
    "text",
    ["There are so many that it fails.", "There is no name.", "Does not say anything.", "It goes on and on."],
)
def test_good_english_is_left_alone(text: str) -> None:
    assert list(prose.of_markdown(text)) == []


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("The message comes\nagain.", "comes again"),
        ("It continues by itself.", "continues by itself"),
        ("Whoever waits is told.", "Whoever"),
        ("The pipeline is not heard of.", "is not heard of"),
        ("| a sink more | continues |", "| a sink more |"),
        ("With the last one, work goes on.", "goes on"),
        ("The subscription stands still.", "stands still"),
        ("The file is not there.", "is not there"),
        ("A message that nobody wants.", "nobody"),
        ("Deletes of before are forgotten.", "of before"),
        ("It waits, for there is no room.", ", for there is"),
    ],
)
def test_pages_comments_and_docstrings_are_held_to_the_same_rules(text: str, phrase: str) -> None:
    assert [found for _, found, _ in prose.of_markdown(text, prose.RULES + prose.READ)] == [phrase]
    assert [found for _, found, _ in prose.of_python(f"def f():\n    {text!r}\n")] == [phrase]
    if "|" not in text:
        comment = text.replace("\n", "\n# ")
        assert [found for _, found, _ in prose.of_python(f"# {comment}\n")] == [phrase]


def test_a_comment_is_found_on_its_line_and_over_the_end_of_a_line() -> None:
    source = "one = 1  # good\ntwo = 2\n# It comes\n# again.\nthree = 3  # kept for ever\n"
    assert sorted((line, phrase) for line, phrase, _ in prose.of_python(source)) == [
        (3, "comes again"),
        (5, "for ever"),
    ]


def test_comments_of_neighbouring_lines_of_code_are_read_separately() -> None:
    assert list(prose.of_python("one = 1  # a ledger that is kept for\ntwo = 2  # ever since\n")) == []


@pytest.mark.parametrize(
    "opening", ["Of the disk with the journal.", "By how many bytes it grows.", "To be called later."]
)
def test_a_docstring_begins_with_a_verb_or_a_noun(opening: str) -> None:
    assert len(list(prose.of_python(f"def f():\n    {opening!r}\n"))) == 1
    assert list(prose.of_python(f"size = 1  # {opening[0].lower()}{opening[1:]}\n")) == []


def test_the_address_of_a_link_is_not_prose() -> None:
    assert list(prose.of_markdown("[keys wait](0016-keys-nobody-accepts-wait.md)", prose.READ)) == []


@pytest.mark.parametrize(
    "text",
    [
        "The reader by itself is enough.",
        "This is meant to be read.",
        "It comes with a test. Again, it is short.",
        "Meanwhile, its clock stands still.",
        "Register it to be called later, for that number.",
    ],
)
def test_good_english_for_users_is_left_alone(text: str) -> None:
    assert list(prose.of_markdown(text, prose.RULES + prose.SPOKEN + prose.READ)) == []
