"""Generates docs/cli.md from the help texts: `python -m pydanube.cli.reference > docs/cli.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from pydanube.api.server import settings
from pydanube.cli.main import danube
from pydanube.cli.shell.failures import MEANING

_BEGIN = """\
# The command line

`python -m pydanube.cli.reference` generates this page from the `--help` texts; a test keeps the two in sync.

```sh
danube standalone --data-dir ./data &
danube produce greetings hello
danube consume greetings --from earliest --exit-at-end
```

- A topic is named `/namespace/name`; `greetings` is short for `/default/greetings`. A partition is named
  `/namespace/name-part-0`.
- The address of the broker comes from `--url`, then `--context NAME`, then `DANUBE_URL`, then the context in use
  (`danube context use`), and is `danube://127.0.0.1:6650` otherwise. You can write these options, `--ca-file` and
  `--debug` directly after `danube` or after the command.
- Results go to stdout, as a table, JSON or YAML (`-o`); everything else goes to stderr. Tables are for people and may
  change; the fields of JSON and YAML are stable. Names and units are those of [REST](rest.md): bytes, and microseconds
  since 1970. A list is one array. `consume`, `top`, `--watch` and `--follow` print a line of JSON, or a document of
  YAML, for each message or refresh.
- Commands that delete, move or republish ask for confirmation. `--yes` skips the question; `--dry-run` shows what would
  happen, with numbers, and fails where the command itself would. Without a terminal, pass one of the two.
- Durations are `250ms`, `90` (seconds), `1h30m` or `1 week`; sizes are `10MB` or `64MiB`. Times are `10m` (ago),
  `14:30`, `yesterday`, `tomorrow 08:00` or `2026-01-31T10:00`, in local time unless they name a zone. Times are
  printed in UTC.
- An error is one line on stderr: what went wrong, and what to do. `--debug` adds the traceback.

## Exit codes

| code | meaning |
|---|---|
"""


def reference() -> str:
    codes = "".join(f"| {code.value} | {meaning} |\n" for code, meaning in MEANING.items())
    return _BEGIN + codes + "".join(_sections(click.Context(danube, info_name="danube")))


def walk(context: click.Context) -> Iterator[click.Context]:
    """Yields every command, in the order of the help."""
    command = context.command
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk(click.Context(inner, parent=context, info_name=name))


def _sections(root: click.Context) -> Iterator[str]:
    for context in walk(root):
        command = context.command
        if isinstance(command, click.Group):
            if context is not root:
                yield f"\n## {context.command_path}\n\n{_text(command)}\n"
            continue
        level = "##" if context.parent is root else "###"
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        yield f"\n{level} {context.command_path}\n\n{_text(command)}\n\n```sh\n{usage}\n```\n\n{_options(context)}"
        yield f"\n{_example(command)}"


def _text(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "")


def _options(context: click.Context) -> str:
    options = [each for each in context.command.params if isinstance(each, click.Option)]
    hidden, end = _SHARED, ""
    if "config" in (each.name for each in options):
        hidden = _SHARED | {setting.flag for setting in settings().values()}
        end = "\nEvery setting of [configuration.md](configuration.md) is a flag.\n"
    records = [each.get_help_record(context) for each in options if each.opts[0] not in hidden]
    lines = [f"| `{_cell(record[0])}` | {_cell(record[1])} |\n" for record in records if record is not None]
    return "".join(["| option | |\n|---|---|\n" if lines else "", *lines, end])


_SHARED = frozenset({"--url", "--context", "--ca-file", "--debug"})  # explained once, above


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _example(command: click.Command) -> str:
    """The example in the epilog, as a line to copy."""
    return f"```sh\n{(command.epilog or '').removeprefix('Example: ')}\n```\n"


if __name__ == "__main__":
    click.echo(reference(), nl=False)
