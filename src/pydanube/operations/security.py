"""Operations on roles and bindings, and what a caller may do."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from pydanube.base.limits import LISTED_MAX
from pydanube.operations.fields import After, Limit, Microseconds
from pydanube.operations.operation import Answer, Done, Request, operation

PrincipalType = Annotated[str, Meta(description="user or service_account")]
PrincipalName = Annotated[str, Meta(description="as in the claim principal_name of a token")]
ScopeName = Annotated[str, Meta(description="cluster, namespace or topic")]
ResourceName = Annotated[
    str, Meta(description="a namespace, /namespace/topic, /namespace/prefix*, or a pipeline; empty for the cluster")
]
Permissions = Annotated[list[str], Meta(description="such as Lookup, Produce or Consume")]
RoleNames = Annotated[list[str], Meta(description="roles that the binding gives")]
ForType = Annotated[str, Meta(description="ask for another principal: user or service_account")]
ForName = Annotated[str, Meta(description="ask for another principal: its name")]


class RoleDescription(Answer):
    role: str
    permissions: list[str]
    system: Annotated[bool, Meta(description="whether it belongs to the system and cannot be changed")]


class Roles(Answer):
    roles: list[RoleDescription]
    more: Annotated[bool, Meta(description="whether there are more after the last one")]


class BindingDescription(Answer):
    binding: str
    principal_type: PrincipalType
    principal_name: PrincipalName
    roles: RoleNames
    scope: ScopeName
    resource: ResourceName


class Bindings(Answer):
    bindings: list[BindingDescription]
    more: Annotated[bool, Meta(description="whether there are more after the last one")]


class Identity(Answer):
    """Who the broker believes the caller to be."""

    principal_type: Annotated[str, Meta(description="anonymous, user, service_account or broker")]
    principal_name: str
    authentication: Annotated[bool, Meta(description="whether the broker checks tokens")]
    super_admin: Annotated[bool, Meta(description="whether it may do everything")]
    expires: Annotated[Microseconds | None, Meta(description="when its token stops counting, with the leeway")] = None


class Decision(Answer):
    """Whether a principal may do something, and why."""

    allowed: bool
    why: Annotated[str, Meta(description="what allows it, or what is missing")]
    needs: Annotated[str, Meta(description="the permission that is needed, or who may do it without one")]
    binding: Annotated[str | None, Meta(description="the binding that allows it")] = None


@operation("role.list", "List roles by name")
class ListRoles(Request[Roles]):
    after: After = ""
    limit: Limit = LISTED_MAX


@operation("role.describe", "Get the permissions of a role")
class DescribeRole(Request[RoleDescription]):
    role: str


@operation("role.put", "Create a role, or change its permissions", changes=True)
class PutRole(Request[Done]):
    role: str
    permissions: Permissions


@operation("role.delete", "Delete a role", changes=True)
class DeleteRole(Request[Done]):
    role: str


@operation("binding.list", "List bindings by id")
class ListBindings(Request[Bindings]):
    principal_type: ForType = ""
    principal_name: ForName = ""
    scope: ScopeName = ""
    resource: ResourceName = ""
    after: After = ""
    limit: Limit = LISTED_MAX


@operation("binding.describe", "Get a binding")
class DescribeBinding(Request[BindingDescription]):
    binding: str


@operation("binding.put", "Give roles to a principal, or change what a binding gives", changes=True)
class PutBinding(Request[Done]):
    binding: str
    principal_type: PrincipalType
    principal_name: PrincipalName
    roles: RoleNames
    scope: ScopeName
    resource: ResourceName = ""


@operation("binding.delete", "Delete a binding", changes=True)
class DeleteBinding(Request[Done]):
    binding: str


@operation("whoami", "Show who the caller is")
class WhoAmI(Request[Identity]):
    pass


@operation("can_i", "Show whether the caller, or another principal, may do something")
class CanI(Request[Decision]):
    action: Annotated[str, Meta(description="such as topic.publish; docs/security.md lists all of them")]
    resource: ResourceName = ""
    principal_type: ForType = ""
    principal_name: ForName = ""
