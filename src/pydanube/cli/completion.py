"""`danube completion`: the script that a shell completes commands with, as click makes it."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(epilog='Example: eval "$(danube completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands in a shell.

    For bash and zsh put the line of the example into your ~/.bashrc or ~/.zshrc; for fish save the script as
    ~/.config/fish/completions/danube.fish. Names of topics, subscriptions and saved contexts are completed too:
    the first two by asking the broker, if it answers within a second.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "danube", "_DANUBE_COMPLETE").source()
    click.echo(script)
