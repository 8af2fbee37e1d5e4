"""`danube security`: tokens, roles and bindings, and what they allow."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from pydanube.access import tokens as access
from pydanube.access.principals import BOUND_KINDS, PrincipalKind
from pydanube.adapters.token_keys import check_source, read_key_set, read_secret
from pydanube.base.errors.root import ExitCode
from pydanube.base.limits import SECOND, TOKEN_BYTES_MAX
from pydanube.base.names import full_name
from pydanube.base.units import shown_when
from pydanube.cli.shell import values
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, prints
from pydanube.cli.shell.running import connected
from pydanube.client import Client
from pydanube.operations.operation import Answer
from pydanube.operations.security import (
    BindingDescription,
    CanI,
    Decision,
    DeleteBinding,
    DeleteRole,
    DescribeBinding,
    DescribeRole,
    Identity,
    ListBindings,
    ListRoles,
    PutBinding,
    PutRole,
    RoleDescription,
    WhoAmI,
)

TYPES = [str(kind) for kind in BOUND_KINDS]
_ROLE_COLUMNS = ("role", "permissions", "system")
_BINDING_COLUMNS = ("binding", "principal_type", "principal_name", "roles", "scope", "resource")


@click.group(cls=CommandGroup, epilog="Example: danube security whoami")
def security() -> None:
    """Manage tokens, roles and bindings."""


def _principal(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, str] | None:
    if value is None:
        return None
    kind, _, name = value.partition(":")
    if kind not in TYPES or not name:
        raise click.BadParameter("write user:NAME or service_account:NAME")
    return kind, name


# -- what a caller may do ----------------------------------------------------------------------------------------------


@security.command("whoami", epilog="Example: danube security whoami --token-file alice.jwt")
@prints(Identity)
@connected
async def whoami(client: Client, output: Output) -> None:
    """Show who the broker believes you to be."""
    found = await client.ask(WhoAmI())
    output.record(found)


@security.command("can-i", epilog="Example: danube security can-i topic.publish /default/orders")
@click.argument("action")
@click.argument("resource", default="")
@click.option(
    "--principal", metavar="TYPE:NAME", callback=_principal, help="Ask for another: user:NAME or service_account:NAME."
)
@prints(Decision)
@connected
async def can_i(client: Client, output: Output, action: str, resource: str, principal: tuple[str, str] | None) -> None:
    """Show whether you may do something, and by which binding, or which one is missing.

    ACTION is one such as topic.publish, and RESOURCE a topic, namespace or pipeline. Exits with 1 if it is refused.
    """
    kind, name = principal or ("", "")
    found = await client.ask(CanI(action, resource, kind, name))
    output.record(found)
    if not found.allowed:
        click.get_current_context().exit(ExitCode.FAILED)


# -- roles -------------------------------------------------------------------------------------------------------------


@security.group(cls=CommandGroup, epilog="Example: danube security roles list")
def roles() -> None:
    """Manage roles: lists of permissions."""


@roles.command("list", epilog="Example: danube security roles list")
@prints(list[RoleDescription])
@connected
async def list_roles(client: Client, output: Output) -> None:
    """List all roles."""
    found: list[RoleDescription] = []
    more = True
    while more:
        page = await client.ask(ListRoles(found[-1].role if found else ""))
        found, more = found + page.roles, page.more
    output.rows(found, _ROLE_COLUMNS)


@roles.command("describe", epilog="Example: danube security roles describe producer")
@click.argument("role")
@prints(RoleDescription)
@connected
async def describe_role(client: Client, output: Output, role: str) -> None:
    """Show the permissions of a role."""
    found = await client.ask(DescribeRole(role))
    output.record(found)


@roles.command("put", epilog="Example: danube security roles put loader --permission Lookup --permission Produce")
@click.argument("role")
@click.option("--permission", "permissions", multiple=True, metavar="NAME", help="Such as Lookup, Produce or Consume.")
@prints(RoleDescription)
@connected
async def put_role(client: Client, output: Output, role: str, permissions: tuple[str, ...]) -> None:
    """Create a role, or replace its permissions."""
    await client.ask(PutRole(role, list(permissions)))
    output.done(f"{role} has {', '.join(permissions) or 'no permissions'}", await client.ask(DescribeRole(role)))


class RoleDeletion(Answer):
    role: str
    dry_run: bool


@roles.command("delete", epilog="Example: danube security roles delete loader --yes")
@click.argument("role")
@prints(RoleDeletion)
@destructive
@connected
async def delete_role(client: Client, output: Output, confirmation: Confirmation, role: str) -> None:
    """Delete a role. Bindings that name it no longer give anything through it."""
    await client.ask(DescribeRole(role))
    deletion = RoleDeletion(role, confirmation.dry_run)
    if confirmation.ask(output, f"delete the role {role}", deletion):
        await client.ask(DeleteRole(role))
        output.done(f"deleted the role {role}", deletion)


# -- bindings ----------------------------------------------------------------------------------------------------------


@security.group(cls=CommandGroup, epilog="Example: danube security bindings list")
def bindings() -> None:
    """Manage bindings: which principal has which roles, and for what."""


@bindings.command("list", epilog="Example: danube security bindings list --principal user:alice")
@click.option("--principal", metavar="TYPE:NAME", callback=_principal, help="Only those of user:NAME, for example.")
@prints(list[BindingDescription])
@connected
async def list_bindings(client: Client, output: Output, principal: tuple[str, str] | None) -> None:
    """List bindings."""
    kind, name = principal or ("", "")
    found: list[BindingDescription] = []
    more = True
    while more:
        page = await client.ask(ListBindings(kind, name, after=found[-1].binding if found else ""))
        found, more = found + page.bindings, page.more
    output.rows(found, _BINDING_COLUMNS)


@bindings.command("describe", epilog="Example: danube security bindings describe alice-orders")
@click.argument("binding")
@prints(BindingDescription)
@connected
async def describe_binding(client: Client, output: Output, binding: str) -> None:
    """Show a binding."""
    found = await client.ask(DescribeBinding(binding))
    output.record(found)


@bindings.command(
    "put",
    epilog="Example: danube security bindings put alice-orders --principal user:alice --role producer "
    "--topic '/default/orders*'",
)
@click.argument("binding")
@click.option("--principal", metavar="TYPE:NAME", required=True, callback=_principal, help="user:NAME, for example.")
@click.option("--role", "roles", multiple=True, required=True, metavar="NAME", help="A role that it gives.")
@click.option("--cluster", is_flag=True, help="For everything.")
@click.option("--namespace", metavar="NAME", help="For a namespace and its topics.")
@click.option("--topic", metavar="TOPIC", help="For a topic, or for all that begin like it: '/default/orders*'.")
@click.option("--pipeline", metavar="NAME", help="For a pipeline.")
@prints(BindingDescription)
@connected
async def put_binding(
    client: Client,
    output: Output,
    binding: str,
    principal: tuple[str, str],
    roles: tuple[str, ...],
    cluster: bool,
    namespace: str | None,
    topic: str | None,
    pipeline: str | None,
) -> None:
    """Give roles to a principal, or change what a binding gives."""
    topic = None if topic is None else full_name(topic)
    scopes = [("cluster", "")] if cluster else []
    scopes += [("namespace", namespace)] if namespace is not None else []
    scopes += [("topic", each) for each in (topic, pipeline) if each is not None]
    if len(scopes) != 1:
        raise click.UsageError("use one of --cluster, --namespace, --topic and --pipeline")
    [(scope, resource)] = scopes
    await client.ask(PutBinding(binding, *principal, list(roles), scope, resource))
    where = resource or "the cluster"
    text = f"{principal[0]} {principal[1]} has {', '.join(roles)} for {where}"
    output.done(text, await client.ask(DescribeBinding(binding)))


class BindingDeletion(Answer):
    binding: str
    dry_run: bool


@bindings.command("delete", epilog="Example: danube security bindings delete alice-orders --yes")
@click.argument("binding")
@prints(BindingDeletion)
@destructive
@connected
async def delete_binding(client: Client, output: Output, confirmation: Confirmation, binding: str) -> None:
    """Delete a binding. What it allowed ends within two seconds."""
    found = await client.ask(DescribeBinding(binding))
    deletion = BindingDeletion(binding, confirmation.dry_run)
    if confirmation.ask(output, f"delete the binding of {found.principal_type} {found.principal_name}", deletion):
        await client.ask(DeleteBinding(binding))
        output.done(f"deleted the binding {binding}", deletion)


# -- tokens ------------------------------------------------------------------------------------------------------------


@security.group(cls=CommandGroup, epilog="Example: danube security tokens validate alice.jwt --secret-file secret")
def tokens() -> None:
    """Create and validate tokens here, without a broker."""


class CreatedToken(Answer):
    principal_type: str
    principal_name: str
    expires: int  # microseconds since 1970
    token: str | None  # None if it was written to a file


@tokens.command("create", epilog="Example: danube security tokens create alice --secret-file secret --out alice.jwt")
@click.argument("name")
@click.option("--type", "kind", type=click.Choice(TYPES), default="user", show_default=True, help="Type of principal.")
@click.option("--secret-file", required=True, metavar="FILE", type=Path, help="File with the secret of the broker.")
@click.option("--expires", type=values.duration, default="30d", show_default=True, help="How long it is valid.")
@click.option("--issuer", default="danube", show_default=True, help="Claim `iss`, as in auth.jwt.issuer.")
@click.option("--audience", help="Claim `aud`, as in auth.jwt.audience.")
@click.option("--out", metavar="FILE", type=Path, help="Write the token to a new file that only you can read.")
@prints(CreatedToken)
def create_token(
    output: Output,
    name: str,
    kind: str,
    secret_file: Path,
    expires: int,
    issuer: str,
    audience: str | None,
    out: Path | None,
) -> None:
    """Create a token that the shared secret signs."""
    until = int(time.time()) + expires // SECOND
    token = access.create(read_secret(secret_file), PrincipalKind(kind), name, issuer, until, audience)
    if len(token) > TOKEN_BYTES_MAX:
        raise click.UsageError(f"the token would have more than {TOKEN_BYTES_MAX} bytes; use shorter names")
    created = CreatedToken(kind, name, until * SECOND, token if out is None else None)
    if out is None:
        output.done(token, created)
        return
    handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(f"{token}\n")
    output.done(
        f"wrote a token of {kind} {name} to {out}, valid until {shown_when(until * SECOND, int(time.time() * SECOND))}",
        created,
    )


class ValidToken(Answer):
    principal_type: str
    principal_name: str
    expires: int  # microseconds since 1970, with the leeway


@tokens.command("validate", epilog="Example: danube security tokens validate alice.jwt --secret-file secret")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--secret-file", metavar="FILE", type=Path, help="File with the secret of the broker.")
@click.option("--jwks", metavar="SOURCE", help="Key set of the broker: a path, or a URL that begins with https://.")
@click.option("--issuer", help="Claim `iss` that it must have.")
@click.option("--audience", help="Claim `aud` that it must have.")
@click.option("--leeway", type=values.duration, default="60s", show_default=True, help="For clocks that differ.")
@prints(ValidToken)
def validate_token(
    output: Output,
    file: str,
    secret_file: Path | None,
    jwks: str | None,
    issuer: str | None,
    audience: str | None,
    leeway: int,
) -> None:
    """Check a token as a broker would; `-` reads it from stdin. Nothing is sent anywhere."""
    keys = [] if secret_file is None else [access.secret_key(read_secret(secret_file))]
    if jwks is not None:
        check_source(jwks)
        keys += access.public_keys(read_key_set(jwks))
    if not keys:
        raise click.UsageError("use --secret-file or --jwks, with the keys of the broker")
    with click.open_file(file, "rb") as source:
        token = source.read(TOKEN_BYTES_MAX + 2).decode("ascii", "replace").strip()
    rules = access.TokenRules(issuer, audience, leeway // SECOND)
    found = access.verify(token, keys, rules, int(time.time() * SECOND))
    output.record(ValidToken(found.kind, found.name, found.expires))
