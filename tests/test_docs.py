"""The documents keep their word: snippets run, commands answer as shown, `make` commands exist, links resolve."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import prose
from pydanube.base.errors import (
    ArgumentInvalid,
    DanubeError,
    JavaMissing,
    PolicyInvalid,
    SubscriptionOptionInvalid,
    error_table,
)
from pydanube.base.errors.pages import page_of
from pydanube.spark.launch import find_java
from pydanube.testing.broker import broker_thread

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SNIPPET_SECONDS_MAX = 60
SPARK_SECONDS_MAX = 180  # a JVM and its workers start first


@dataclass(frozen=True)
class Fence:
    """One fenced block: what stands behind the opening marks, its text, and the line where the text begins."""

    info: str
    text: str
    line: int


def fences(text: str) -> list[Fence]:
    found: list[Fence] = []
    opened: tuple[str, str, int] | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        mark = re.match(r"\s*(`{3,}|~{3,})\s*(.*)$", line)
        if mark and opened is None:
            opened = (mark[1], mark[2].strip(), number + 1)
        elif mark and opened and mark[1].startswith(opened[0]) and not mark[2]:
            found.append(Fence(opened[1], "\n".join(lines[opened[2] - 1 : number - 1]), opened[2]))
            opened = None
    assert opened is None, f"the block opened before line {opened[2]} is never closed"
    return found


def outside_fences(text: str) -> str:
    for fence in fences(text):
        text = text.replace(fence.text, "", 1) if fence.text else text
    return text


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def file_of(fence: Fence) -> str | None:
    """The name in the first line of a program that the reader is to save: such run when a command says so."""
    named = re.match(r"# (\w+\.py)\n", fence.text)
    return named[1] if named and fence.info == "python" else None


SNIPPETS = [
    pytest.param(path, fence, id=f"{name_of(path)}:{fence.line}")
    for path in DOCUMENTS
    for fence in fences(path.read_text(encoding="utf-8"))
    if re.match(r"py(thon|con)?\b", fence.info) and file_of(fence) is None
]
WALKS = [path for path in DOCUMENTS if "```console\n" in path.read_text(encoding="utf-8")]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A broker for the snippets that connect to one."""
    with broker_thread() as address:
        yield address


@pytest.mark.parametrize(("path", "fence"), SNIPPETS)
def test_a_snippet_runs(path: Path, fence: Fence, tmp_path: Path, url: str) -> None:
    assert fence.info == "python", "a Python snippet is marked `python` and nothing else: all of them run"
    on_spark = "pydanube.spark" in fence.text
    if on_spark and os.environ.get("CI") != "true":
        try:
            find_java()
        except JavaMissing as why:
            pytest.skip(str(why))
    source = "\n" * (fence.line - 1) + fence.text  # so that a traceback names the line of the document
    program = tmp_path / path.name
    program.write_text(source, encoding="utf-8")
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(program)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SPARK_SECONDS_MAX if on_spark else SNIPPET_SECONDS_MAX,
            env=os.environ | {"DANUBE_URL": url},
        )
        if done.stderr != "terminate called without an active exception\n":
            break  # else threads of pyarrow outlived the interpreter, as they sometimes do on a busy machine
    assert done.returncode == 0, done.stderr


def typed(console: str) -> list[tuple[str, str]]:
    """The commands of a `console` block, each with what is shown below it; nothing shown, nothing compared."""
    parts = re.split(r"^\$ ", console.replace("\\\n", " "), flags=re.MULTILINE)
    assert parts[0] == "", "a console block begins with a command"
    return [(command, shown.strip("\n")) for command, _, shown in (part.partition("\n") for part in parts[1:])]


def as_shown(shown: str, said: str) -> bool:
    """`…` stands for whatever there is."""
    pattern = ".*".join(map(re.escape, shown.split("…")))
    lines = [line.rstrip() for line in said.splitlines()]
    return not shown or re.fullmatch(pattern, "\n".join(lines), re.DOTALL) is not None


@pytest.mark.parametrize("path", WALKS, ids=name_of)
def test_a_walk_through_a_page_goes_as_shown(path: Path, tmp_path: Path) -> None:
    """From its first block to the last, in one directory, with a broker of its own."""
    objects = f"file://{tmp_path}/objects" if path.name == "tiering.md" else None
    with broker_thread(tmp_path / "data", objects=objects) as url:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        served = url.removeprefix("danube://")
        around = {"DANUBE_URL": url, "PATH": programs, "HOME": str(tmp_path)}
        for fence in fences(path.read_text(encoding="utf-8")):
            if name := file_of(fence):
                (tmp_path / name).write_text(fence.text, encoding="utf-8")
            for command, shown in typed(fence.text) if fence.info == "console" else ():
                done = subprocess.run(
                    ["bash", "-c", f"exec 2>&1; {command.replace('localhost:6650', served)}"],
                    cwd=tmp_path,
                    stdout=subprocess.PIPE,
                    text=True,
                    timeout=SNIPPET_SECONDS_MAX,
                    env=os.environ | around,
                )
                assert done.returncode == 0, f"{name_of(path)}:{fence.line}: {command}\n{done.stdout}"
                assert as_shown(shown, done.stdout), f"{name_of(path)}:{fence.line}: {command}\n{done.stdout}"


def make_targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def mentioned_targets(text: str) -> set[str]:
    """What `make` is asked to do in inline code and in the lines of blocks; settings like SEEDS=1 are no targets."""
    spans = re.findall(r"`([^`\n]+)`", outside_fences(text))
    blocks = [line.strip().removeprefix("$ ") for fence in fences(text) for line in fence.text.splitlines()]
    commands = [command.split("#")[0] for command in (*spans, *blocks) if re.match(r"make( |$)", command)]
    words = [word for command in commands for word in command.split()[1:]]
    return {word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_make_command_exists(path: Path) -> None:
    known = make_targets((ROOT / "Makefile").read_text(encoding="utf-8"))
    assert mentioned_targets(path.read_text(encoding="utf-8")) - known == set()


def anchors(text: str) -> set[str]:
    """The anchors that headings get, as forges make them."""
    headings = re.findall(r"^#{1,6}\s+(.*?)\s*$", outside_fences(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> list[str]:
    broken: list[str] = []
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", outside_fences(text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        resolved = (path.parent / file).resolve() if file else path
        if not resolved.exists() or (
            anchor and resolved.suffix == ".md" and anchor not in anchors(resolved.read_text(encoding="utf-8"))
        ):
            broken.append(target)
    return broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_relative_links_resolve(path: Path) -> None:
    assert broken_links(path) == []


def code_in(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def cited_paragraphs(text: str) -> set[str]:
    return set(re.findall(r"§(\d+[a-z]?)", text))


def paragraphs(page: str) -> list[str]:
    return re.findall(r"^### §(\d+[a-z]?) \S", page, re.MULTILINE)


def test_every_cited_paragraph_is_on_the_page_of_semantics() -> None:
    known = paragraphs((ROOT / "docs/semantics.md").read_text(encoding="utf-8"))
    assert len(known) == len(set(known))
    texts = [*DOCUMENTS, *(path for folder in ("src", "tests", "bench", "examples") for path in code_in(folder))]
    unknown = {name_of(path): cited_paragraphs(path.read_text(encoding="utf-8")) - set(known) for path in texts}
    assert {name: cited for name, cited in unknown.items() if cited} == {}


INSIDE = [
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/glossary.md", "docs/semantics.md")),
    *sorted(ROOT.glob("docs/internals/*.md")),
]


def missing_files(text: str, names: set[str]) -> list[str]:
    """Files in inline code that exist neither in the repository nor in `src/pydanube`; a bare name may be anywhere."""

    def exists(file: str) -> bool:
        return any((base / file).exists() for base in (ROOT, ROOT / "src/pydanube")) if "/" in file else file in names

    return [file for file in re.findall(r"`([\w./-]+\.py)`", outside_fences(text)) if not exists(file)]


def missing_names(text: str, source: str) -> list[str]:
    """`Class.method` in inline code, where the sources have no such class, or no such method at all."""
    found = re.findall(r"`([A-Z]\w*[a-z]\w*)\.(\w+)`", outside_fences(text))
    return [
        f"{owner}.{name}"
        for owner, name in found
        if not (re.search(rf"\bclass {owner}\b", source) and re.search(rf"\b(?:def {name}\b|{name}\b *[:=])", source))
    ]


def test_pages_about_the_inside_name_what_exists() -> None:
    code = [path for folder in ("src", "tests", "bench", "examples") for path in code_in(folder)]
    names, source = {path.name for path in code}, "\n".join(path.read_text("utf-8") for path in code_in("src"))
    pages = {name_of(path): path.read_text(encoding="utf-8") for path in INSIDE}
    found = {page: missing_files(text, names) + missing_names(text, source) for page, text in pages.items()}
    assert {page: missing for page, missing in found.items() if missing} == {}


def test_the_operators_page_knows_every_alert() -> None:
    rules = (ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8")
    page = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\bDanube[A-Z]\w+", page)) == set(re.findall(r"- alert: (\w+)", rules))


OTHERS_SAY = {"unable to get local issuer certificate"}  # OpenSSL


def misquoted(text: str, sentences: list[str]) -> list[str]:
    """What a page quotes in at least four words, and no program says. `…` stands for what differs."""
    shapes = [
        re.compile(".*".join(re.escape(part) for part in each.split("{}")))
        for each in sentences
        if len(each.replace("{}", " ").split()) > 1
    ]
    quotes = [found[1] for found in re.finditer(r"`([^`\n]+)`", outside_fences(text))]
    return [
        quote
        for quote in quotes
        if re.fullmatch(r"[\w'.,;: ()…/-]+", quote) and len(quote.split()) > 3
        if not quote.startswith("danube ") and quote not in OTHERS_SAY
        if not any(all(part.strip() in each for part in quote.split("…")) for each in sentences)
        if not any(shape.fullmatch(re.sub(r"^\w+: ", "", quote)) for shape in shapes)
    ]


def test_operators_find_the_messages_that_pages_quote() -> None:
    sentences = [each for path in ROOT.glob("src/**/*.py") for each in prose.said_by(path.read_text(encoding="utf-8"))]
    pages = ("operating.md", "troubleshooting.md")
    found = [quote for page in pages for quote in misquoted((ROOT / "docs" / page).read_text("utf-8"), sentences)]
    assert found == [], "the program says something else"
    said = ["the disk at {} is full", "it does not speak TLS; use danube://"]
    quotes = "`the disk at /data is full`, `it does not speak TLS`, `the disk … is full`, `danube topic list --all`"
    assert misquoted(quotes, said) == []
    assert misquoted("`the disk at /data is too small`, `it speaks no TLS here`", said) == [
        "the disk at /data is too small",
        "it speaks no TLS here",
    ]


def page_and_help(kind: type[DanubeError]) -> tuple[str, set[str]]:
    return page_of(kind), set(re.findall(r"docs/([\w/]+\.md)", kind.help))


CODES = [code for code, kind in error_table().items() if kind.__module__.startswith("pydanube")]  # not a test's own


@pytest.mark.parametrize("code", CODES)
def test_an_error_names_the_page_that_explains_it(code: str) -> None:
    """The heading exists; a help text that names a page names the same one."""
    page, named = page_and_help(error_table()[code])
    file, _, anchor = page.partition("#")
    text = (ROOT / "docs" / file).read_text(encoding="utf-8")
    assert not anchor or anchor in anchors(text)
    assert named <= {file}


def test_a_refused_option_of_a_subscription_leads_to_the_page_of_options() -> None:
    assert page_and_help(SubscriptionOptionInvalid) == ("subscriptions.md", {"subscriptions.md"})
    assert page_and_help(PolicyInvalid) == ("policies.md", {"policies.md"})
    assert "ledger" not in f"{ArgumentInvalid.__doc__} {ArgumentInvalid.help}"


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs/README.md"
    named = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", index.read_text("utf-8"))}
    pages = {path for path in ROOT.glob("docs/**/*.md") if path.parent.name != "decisions" and path != index}
    assert {name_of(path) for path in pages - named} == set()


def test_the_checks_find_planted_mistakes(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        "# One page\n\n`make fly` and `make sim SEEDS=3`\n\n[gone](gone.md) [here](#one-page) [not](#two)\n\n"
        "```sh\nmake run test  # both\n```\n\n```python no-run\nprint(1)\n```\n",
        encoding="utf-8",
    )
    text = document.read_text(encoding="utf-8")
    assert [(fence.info, fence.line) for fence in fences(text)] == [("sh", 8), ("python no-run", 12)]
    assert mentioned_targets(text) == {"fly", "sim", "run", "test"}
    assert broken_links(document) == ["gone.md", "#two"]
    assert typed("$ danube x \\\n  -y\ndone\n$ true\n") == [("danube x    -y", "done"), ("true", "")]
    assert as_shown("offset …, 3 bytes", "offset 12, 3 bytes \n")
    assert as_shown("", "anything")
    assert not as_shown("done", "done\nand more")
    assert missing_files("`wire/batch.py` `batch.py` `tests/quick.py` `wire/gone.py` `gone.py`", {"batch.py"}) == [
        "wire/gone.py",
        "gone.py",
    ]
    assert missing_names("`Gate.open` `Gate.shut` `Wall.open`", "class Gate:\n    def open(self): ...") == [
        "Gate.shut",
        "Wall.open",
    ]
    assert cited_paragraphs("as §7 and §17a–§19 say") == {"7", "17a", "19"}
    assert paragraphs("### §7 A title\n\n§8 is cited\n\n### §9\n") == ["7"]
    assert make_targets("run: x ## go\nbench-core:\n\techo\nX := 1\n") == {"run", "bench-core"}
