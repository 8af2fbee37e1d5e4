"""`danube_admin.SecurityAdmin`: roles and bindings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.messages import Messages
from pydanube.base.errors import BindingNotFound
from pydanube.operations.security import (
    BindingDescription,
    DeleteBinding,
    DeleteRole,
    DescribeBinding,
    DescribeRole,
    ListBindings,
    ListRoles,
    PutBinding,
    PutRole,
    RoleDescription,
)

admin = Messages("danube_admin")


class SecurityAdmin:
    name = "danube_admin.SecurityAdmin"

    # -- roles ---------------------------------------------------------------------------------------------------------

    async def create_role(self, call: Call, request: Any) -> Any:
        """Creates the role, or changes one that exists."""
        await call.session.carry_out(PutRole(request.role.name, list(request.role.permissions)))
        return admin.CreateRoleResponse(success=True)

    async def get_role(self, call: Call, request: Any) -> Any:
        return admin.GetRoleResponse(role=_role(await call.session.carry_out(DescribeRole(request.name))))

    async def list_roles(self, call: Call, request: Any) -> Any:
        answer, more, after = admin.ListRolesResponse(), True, ""
        while more:
            page = await call.session.carry_out(ListRoles(after))
            answer.roles.extend(map(_role, page.roles))
            more, after = page.more, page.roles[-1].role if page.roles else ""
        return answer

    async def delete_role(self, call: Call, request: Any) -> Any:
        await call.session.carry_out(DeleteRole(request.name))
        return admin.DeleteRoleResponse(success=True)

    # -- bindings ------------------------------------------------------------------------------------------------------

    async def create_binding(self, call: Call, request: Any) -> Any:
        """Creates the binding, or replaces one that exists."""
        asked = request.binding
        names = asked.principal_type, asked.principal_name, list(asked.role_names), asked.scope, asked.resource_name
        await call.session.carry_out(PutBinding(asked.id, *names))
        return admin.CreateBindingResponse(success=True)

    async def get_binding(self, call: Call, request: Any) -> Any:
        return admin.GetBindingResponse(binding=_binding(await _find(call, request)))

    async def list_bindings(self, call: Call, request: Any) -> Any:
        answer = admin.ListBindingsResponse()
        async for each in _all(call, request.scope, request.resource_name):
            answer.bindings.append(_binding(each))
        return answer

    async def list_all_bindings(self, call: Call, request: Any) -> Any:
        answer = admin.ListBindingsResponse()
        async for each in _all(call, "", ""):
            answer.bindings.append(_binding(each))
        return answer

    async def delete_binding(self, call: Call, request: Any) -> Any:
        found = await _find(call, request)
        await call.session.carry_out(DeleteBinding(found.binding))
        return admin.DeleteBindingResponse(success=True)


async def _find(call: Call, request: Any) -> BindingDescription:
    """The binding, if it has the scope and the resource that the request names, if any."""
    found = await call.session.carry_out(DescribeBinding(request.binding_id))
    if request.scope not in ("", found.scope) or request.resource_name not in ("", found.resource):
        raise BindingNotFound(f"the binding {found.binding} is for another scope or resource")
    return found


async def _all(call: Call, scope: str, resource: str) -> AsyncIterator[BindingDescription]:
    more, after = True, ""
    while more:
        page = await call.session.carry_out(ListBindings(scope=scope, resource=resource, after=after))
        for each in page.bindings:
            yield each
        more, after = page.more, page.bindings[-1].binding if page.bindings else ""


def _role(found: RoleDescription) -> Any:
    return admin.RoleDefinition(name=found.role, permissions=found.permissions, system=found.system)


def _binding(found: BindingDescription) -> Any:
    return admin.BindingDefinition(
        id=found.binding,
        principal_type=found.principal_type,
        principal_name=found.principal_name,
        role_names=found.roles,
        scope=found.scope,
        resource_name=found.resource,
    )
