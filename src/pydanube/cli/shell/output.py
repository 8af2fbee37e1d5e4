"""Results of commands: a table for people, JSON or YAML for programs; confirmation; progress.

What programs get is always an answer as it is: a typed struct, of the broker or beside the command, with the names and
units of REST. A list of answers is one array. A command that prints repeatedly prints a line of JSON, or a document of
YAML, each time.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from pydanube.cli.shell.failures import Failure, printable
from pydanube.operations.operation import Answer

if TYPE_CHECKING:
    from rich.table import Table

FORMATS = ("table", "json", "yaml")
_WIDE = 10_000  # columns if stdout is not a terminal: do not wrap lines for programs
_CELL_CHARACTERS_MAX = 500  # of one cell, such as a payload; JSON and YAML show all of it
Row = Mapping[str, Any] | Answer


class Output:
    """Prints results in the format of `-o`; see `prints`."""

    def __init__(self, format: str) -> None:
        self.format = format

    @property
    def for_people(self) -> bool:
        """Whether values may be formatted for people."""
        return self.format == "table"

    def rows(self, answers: Sequence[Answer], columns: Sequence[str], shown: Sequence[Row] | None = None) -> None:
        """Prints a list. A table shows only these columns, in this order, of the rows `shown` if they are given."""
        if self.format == "table":
            self.table(answers if shown is None else shown, columns)
        else:
            self._dump(answers)

    def table(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """Prints a table, whatever the format: a command asks `for_people` first."""
        _print_table(table_of(rows, columns))

    def names(self, names: Sequence[str], column: str) -> None:
        """Prints a list of names."""
        if self.format == "table":
            self.table([{column: name} for name in names], (column,))
        else:
            self._dump(names)

    def record(self, answer: Answer, shown: Row | None = None) -> None:
        """Prints one answer; a table has one row per field, of the record `shown` if it is given."""
        if self.format == "table":
            fields = flatten(to_builtins(answer if shown is None else shown))
            self.table([{"field": name, "value": each} for name, each in fields], ("field", "value"))
        else:
            self._dump(answer)

    def done(self, sentence: str, answer: Answer | Sequence[Answer]) -> None:
        """Prints what was done, as a sentence or as an answer."""
        if self.format == "table":
            click.echo(printable(sentence))
        else:
            self._dump(answer)

    def summary(self, sentence: str, answer: Answer, *, beside: bool = False) -> None:
        """Prints the totals: a sentence to stderr, or an answer to stdout; to stderr too if stdout has the data."""
        if self.format == "table":
            click.echo(printable(sentence), err=True)
        else:
            self._dump(answer, err=beside)

    def piece(self, answers: Sequence[Answer]) -> None:
        """Prints one of many lists, for programs: a line of JSON or a document of YAML."""
        self._dump(answers, paged=True)
        sys.stdout.flush()

    @contextmanager
    def live(self, columns: Sequence[str]) -> Iterator[Callable[[Sequence[Answer]], None]]:
        """Yields a function to call with all rows, repeatedly.

        On a terminal, the table is redrawn. Otherwise each call prints a table, a line of JSON or a YAML document.
        """
        if self.format == "table" and sys.stdout.isatty():
            from rich.console import Console
            from rich.live import Live

            with Live(console=Console(), auto_refresh=False, screen=False) as view:
                yield lambda rows: view.update(table_of(rows, columns), refresh=True)
        else:
            yield lambda rows: self._page(rows, columns)

    def _page(self, rows: Sequence[Answer], columns: Sequence[str]) -> None:
        if self.format == "table":
            self.table(rows, columns)
            click.echo()
            sys.stdout.flush()
        else:
            self.piece(rows)

    def _dump(
        self, answer: Answer | Sequence[Answer] | Sequence[str], *, err: bool = False, paged: bool = False
    ) -> None:
        value = to_builtins(answer)
        if self.format == "json":
            click.echo(json.dumps(value, indent=None if paged else 2, ensure_ascii=False), err=err)
        else:
            import yaml

            text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, explicit_start=paged)
            click.echo(text, nl=False, err=err)


class OutputOption(click.Option):
    """`-o`. `prints` says what the command prints for programs: the types of its answers."""

    def __init__(self, *names: Any, prints: Sequence[Any], **details: Any) -> None:
        super().__init__(*names, **details)
        self.prints = prints


def prints(*types: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `-o`. The command gets an `Output` as its argument `output`, and prints answers of these types."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(*arguments: Any, output: str, **options: Any) -> Any:
            return function(*arguments, output=Output(output), **options)

        return output_option(*types, formats=FORMATS)(command)

    return decorate


def output_option(*types: Any, formats: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `-o` as text: the first of the formats is the default."""
    return click.option(
        "-o",
        "--output",
        cls=OutputOption,
        prints=types,
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
    )


def destructive(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--dry-run` and `--yes`. The command gets a `Confirmation` as its argument `confirmation`."""

    @wraps(function)
    def command(*arguments: Any, dry_run: bool, yes: bool, **options: Any) -> Any:
        return function(*arguments, confirmation=Confirmation(dry_run, yes), **options)

    command = click.option("--yes", "-y", is_flag=True, help="Skip the confirmation.")(command)
    return click.option("--dry-run", is_flag=True, help="Show what would happen, without doing it.")(command)


def stdin_is_terminal() -> bool:
    return sys.stdin.isatty()


def stderr_is_terminal() -> bool:
    """Whether a person reads what is printed beside the output."""
    return sys.stderr.isatty()


class Confirmation:
    """Asks before something is done that cannot be undone."""

    def __init__(self, dry_run: bool, yes: bool) -> None:
        self.dry_run = dry_run
        self._yes = yes

    def ask(self, output: Output, action: str, plan: Answer | Sequence[Answer]) -> bool:
        """Whether to go ahead. `action` is what would be done, with numbers: "delete …". Scripts must pass --yes.

        A dry run prints the plan.
        """
        if self.dry_run:
            output.done(f"would {action}", plan)
            return False
        if not self._yes:
            if not stdin_is_terminal():
                raise click.UsageError(f"this would {action}; not a terminal, so pass --yes to confirm")
            with _interruptible():
                click.confirm(printable(f"This will {action}. Continue?"), abort=True, err=True)
        return True


@contextmanager
def _interruptible() -> Iterator[None]:
    """Lets a signal end the question at once. The event loop, which the question blocks, would handle it too late."""
    before = {each: signal.signal(each, signal.default_int_handler) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


# -- tables ------------------------------------------------------------------------------------------------------------


def table_of(rows: Sequence[Row], columns: Sequence[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        numeric = any(isinstance(row.get(name), int | float) for row in rows) and name != "value"
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(row.get(name))) for name in columns))
    return table


def _print_table(table: Table) -> None:
    from rich.console import Console

    if sys.stdout.isatty():
        Console().print(table)
        return
    console = Console(width=_WIDE)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"
        case int():
            return f"{value}"
        case list():
            return ", ".join(map(_cell, value))
        case dict():
            return ", ".join(f"{name}={_cell(each)}" for name, each in value.items())
    text = printable(str(value)[:_CELL_CHARACTERS_MAX])
    return f"{text}…" if len(str(value)) > _CELL_CHARACTERS_MAX else text


def flatten(record: Row, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the fields of a record; those of nested records have names with dots."""
    for name, value in record.items():
        if isinstance(value, dict | Answer) and value:
            yield from flatten(value, f"{prefix}{name}.")
        elif value != {}:
            yield f"{prefix}{name}", value


# -- long work ---------------------------------------------------------------------------------------------------------


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of items just done. Shows a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


class Throughput(Answer):
    """How many messages a command moved, and how fast."""

    messages: int
    seconds: float
    messages_per_second: int


def throughput(messages: int, seconds: float) -> dict[str, Any]:
    """The fields of a `Throughput`."""
    rate = round(messages / max(seconds, 1e-9))
    return {"messages": messages, "seconds": round(seconds, 3), "messages_per_second": rate}


def require_package(module: str, purpose: str) -> Any:
    """Imports a module of an optional package, or fails with the command that installs it."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise Failure(f"{purpose} needs {module.split('.')[0]}", "Run pip install 'pydanube[arrow]'.") from None
