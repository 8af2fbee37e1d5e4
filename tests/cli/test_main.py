"""What all commands share: help, examples, errors and exit codes, and how little is loaded."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cli.conftest import Danube
from pydanube import __version__
from pydanube.base.errors.root import ExitCode
from pydanube.cli.main import COMMANDS, main
from pydanube.cli.main import danube as root
from pydanube.cli.reference import reference, walk
from pydanube.cli.shell.failures import MEANING

DOCS = Path(__file__).resolve().parents[2] / "docs"
ALL = list(walk(click.Context(root, info_name="danube")))
LEAVES = [each for each in ALL if not isinstance(each.command, click.Group)]
DESTRUCTIVE = [
    "topic delete",
    "topic truncate",
    "subscription seek",
    "subscription skip",
    "subscription delete",
    "namespace delete",
    "dlq redrive",
    "context delete",
    "schema delete",
]


def test_the_help_loads_no_command_no_client_and_no_broker() -> None:
    program = (
        "import sys; from pydanube.cli.main import main; main(['--help']);"
        "print([name for name in ('asyncio', 'rich', 'yaml', 'uvloop', 'pydanube.client', 'pydanube.broker')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    for context in ALL:
        if context.parent is ALL[0]:
            assert (context.command.help or "").split("\n")[0] == COMMANDS[str(context.info_name)].summary


@pytest.mark.parametrize("context", LEAVES, ids=lambda each: each.command_path)
def test_every_command_has_an_example_that_it_understands(
    context: click.Context, run: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epilog = context.command.epilog or ""
    assert epilog.startswith("Example: ")
    assert context.command_path in epilog
    words = shlex.split(epilog.split(context.command_path, 1)[1].rstrip(')"'))
    if "FILE" in str(context.command.collect_usage_pieces(context)).upper():
        (tmp_path / "orders.parquet").touch()
        monkeypatch.chdir(tmp_path)
    with context.command.make_context(context.command_path, words):
        pass
    shown = run(*context.command_path.split()[1:], "--help")
    assert shown.code == 0
    assert "Example:" in shown.text


def test_the_page_about_the_command_line_is_made_of_the_help() -> None:
    made = reference()
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == made, "run python -m pydanube.cli.reference > docs/cli.md"
    for code in ExitCode:
        assert f"| {code.value} | {MEANING[code]} |" in made


@pytest.mark.parametrize("path", DESTRUCTIVE)
def test_what_cannot_be_taken_back_can_be_tried_first(path: str) -> None:
    [command] = [each.command for each in LEAVES if each.command_path == f"danube {path}"]
    assert {"dry_run", "yes"} <= {each.name for each in command.params}


def test_the_version_is_the_package_s(run: Danube) -> None:
    assert run("--version").text == f"danube {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["topic", "lisst"], 2, "unknown command 'lisst'; did you mean list?"),
        (["topic", "list", "--namspace", "x"], 2, "unknown option --namspace; did you mean --namespace?"),
        (["consume"], 2, "Missing argument 'TOPIC'"),
        (
            ["consume", "t", "--from", "soon"],
            2,
            "'soon' is not a position in a topic; use earliest",
        ),
        (["consume", "t", "--since", "1m", "--offset", "3"], 2, "one of --from, --since and --offset"),
        (["consume", "t", "-f", "%z"], 2, "%z is not a known format field"),
        (["topic", "list", "--url", "nonsense"], 2, "is not a valid broker address"),
        (["topic", "describe", "no such name"], 2, "no such name"),
        (["topic", "describe", "not-there"], 3, "topic /default/not-there does not exist (Create it with"),
        (["subscription", "list", "not-there"], 3, "does not exist"),
        (["namespace", "describe", "not-there"], 3, "does not exist"),
        (["topic", "list", "--context", "not-there"], 3, "unknown context 'not-there'"),
        (["topic", "list", "--url", "danube://127.0.0.1:1"], 4, "Connection refused"),
        (
            ["topic", "list", "--url", "danube://127.0.0.1:1"],
            4,
            "(Start a broker with `danube standalone ",
        ),
        (["completion"], 2, "Choose from: bash, zsh, fish"),
        (["topic", "create", "t", "--policy", "flavour=3"], 2, "flavour"),
        (["produce", "t", "-H", "a=\udcff"], 2, "an attribute must be UTF-8"),
        (["topic", "create", "t", "--policy", "ttl_seconds"], 2, "a policy must look like name=value"),
    ],
)
def test_a_failure_is_one_line_and_a_stable_code(danube: Danube, arguments: list[str], code: int, said: str) -> None:
    ended = danube(*arguments)
    assert ended.code == code, ended
    assert ended.out == b""
    assert said in ended.err
    assert ended.err.startswith("danube: ")
    assert ended.err.count("\n") == 1
    assert ended.err.endswith(")\n")


@pytest.mark.parametrize("words", [[], ["topic"]], ids=str)
def test_a_noun_alone_shows_what_could_follow(run: Danube, words: list[str]) -> None:
    ended = run(*words)
    assert ended.code == 2
    assert "Commands:\n" in ended.err


def test_debug_shows_where_an_error_arose() -> None:
    from pydanube.base.errors import AddressInvalid

    with pytest.raises(AddressInvalid):
        main(["--debug", "topic", "list", "--url", "nonsense"])


@pytest.mark.slow
def test_a_password_in_an_address_is_not_shown(run: Danube) -> None:
    for words in (["context", "show"], ["topic", "list"], ["doctor"], ["config", "show"]):
        ended = run(*words, "--url", "danube://me:secret@127.0.0.1:1")
        said = ended.out.decode() + ended.err
        assert "***@127.0.0.1:1" in said
        assert "secret" not in said


def test_what_others_wrote_does_not_steer_the_terminal(danube: Danube) -> None:
    ended = danube("topic", "describe", "\x1b[31mred")
    assert ended.code == 2
    assert "\x1b" not in ended.err


def test_the_address_may_stand_in_front_of_the_noun_and_behind_the_verb(run: Danube, url: str) -> None:
    assert run("--url", url, "namespace", "list").code == 0
    assert run("namespace", "list", "--url", url).code == 0
    assert run("--url", "danube://127.0.0.1:1", "namespace", "list", "--url", url).code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_asks_the_command(run: Danube, shell: str) -> None:
    assert "_DANUBE_COMPLETE" in run("completion", shell).text


@pytest.mark.parametrize(
    ("words", "found"),
    [("danube sub", "subscription"), ("danube topic cr", "create"), ("danube topic create --part", "--partitions")],
)
def test_a_shell_is_told_what_could_follow(words: str, found: str) -> None:
    environment = {"_DANUBE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "pydanube.cli.main"], env=environment, capture_output=True, text=True, timeout=30
    )
    assert f"plain,{found}" in done.stdout.splitlines(), done
