"""docs/pipelines.md keeps its word: every key of a file is on it and no other, and its files are valid ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pydanube.pipeline.spec import flow
from pydanube.pipeline.spec import steps as spec_steps
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.sinks import SINKS
from pydanube.pipeline.spec.source import COMMON, SOURCES

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs/pipelines.md").read_text(encoding="utf-8")
FILES = [
    *re.findall(r"```yaml\n(name: .*?)```", PAGE, re.DOTALL),
    *(path.read_text() for path in ROOT.glob("examples/**/*.yaml")),
]


def keys_under(heading: str) -> set[str]:
    """The names in code in the first cells of the tables of a section, without those of its subsections."""
    section = re.split(r"^#+ ", PAGE.split(f"## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}


@pytest.mark.parametrize(
    ("heading", "keys"),
    [
        ("The file", flow.KEYS),
        ("Sources", (*SOURCES.names(), *SOURCES.keys(), *COMMON)),
        ("Transforms", spec_steps.KINDS),
        ("Sinks", (*SINKS.names(), *SINKS.keys())),
    ],
)
def test_every_key_of_a_file_is_on_the_page(heading: str, keys: tuple[str, ...]) -> None:
    assert keys_under(heading) == set(keys)


@pytest.mark.parametrize("text", FILES, ids=[text.partition("name: ")[2].split()[0] for text in FILES])
def test_a_file_that_is_shown_can_be_used(text: str, tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(text, encoding="utf-8")
    Flow.load(tmp_path / "flow.yaml")


def test_the_table_of_changes_says_of_each_whether_it_is_tried() -> None:
    table = PAGE.split("### Changing the file\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (?!change|---)([^|]*) \| *(✓?) *\| ([^|]*) \|$", table, re.MULTILINE)
    assert len(rows) == table.count("\n| ") - 1  # its head
    tried = (ROOT / "tests/pipeline/test_changes.py").read_text(encoding="utf-8")
    missing = [change for change, mark, _ in rows if mark and change not in tried]
    assert missing == []
