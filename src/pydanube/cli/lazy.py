"""A group of commands that are loaded when they are used, so that `danube --help` need not load any of them."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

OTHER_NAMES = {  # of commands, in other systems: to us they are far from ours
    "pub": "produce",
    "publish": "produce",
    "send": "produce",
    "sub": "consume",
    "subscribe": "consume",
    "receive": "consume",
    "read": "consume",
    "broker": "standalone",
    "server": "standalone",
    "start": "standalone",
}


class Entry(NamedTuple):
    """Where a command is, and the one sentence that the list of commands says of it."""

    module: str
    attribute: str
    summary: str


class Noun(click.Group):
    """Its verbs stand in the order in which they were written."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class ReaderGone(Exception):
    """Whoever read the output has enough. Not an `OSError`, for which click has an ending of its own."""


class LazyGroup(click.Group):
    """Its commands come from a table."""

    def __init__(self, *arguments: Any, table: dict[str, Entry], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry.module), entry.attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not ctx.resilient_parsing and not name.startswith("-"):
            close = OTHER_NAMES.get(name) or next(iter(get_close_matches(name[:100], self.table, 1, 0.5)), None)
            raise click.UsageError(
                f"unknown command {name[:100]!r}" + (f"; did you mean {close}?" if close else ""), ctx
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            ended = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None
        return ended

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [name for name in self.table if name.startswith(incomplete)]
        own = [] if incomplete[:1].isalpha() else click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=self.table[name].summary) for name in found), *own]
