"""Roles and bindings, who a caller is, and what it may do."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from pydanube.access.policy import Binding
from pydanube.access.principals import BOUND_KINDS, Principal
from pydanube.access.rights import Action, resource_named
from pydanube.access.table import SYSTEM_ROLES, TABLE
from pydanube.base.errors import RequestInvalid
from pydanube.base.fields import listed, shown
from pydanube.base.limits import LISTED_MAX
from pydanube.broker.door.verbs.base import Verbs, page
from pydanube.broker.security.roles import Roles
from pydanube.operations import security as operations
from pydanube.operations.operation import Done
from pydanube.operations.security import (
    BindingDescription,
    Bindings,
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

BINDINGS_A_TURN = 500  # that a list looks at: about a millisecond


class SecurityVerbs(Verbs):
    __slots__ = ()

    @property
    def _roles(self) -> Roles:
        return self._door.roles

    # -- roles ---------------------------------------------------------------------------------------------------------

    async def list_roles(self, request: ListRoles) -> operations.Roles:
        self._ask(Action.SECURITY_SHOW)
        names = self._roles.listed_roles(request.after, min(request.limit, LISTED_MAX) + 1)
        return operations.Roles(*page([self._described(name) for name in names], request.limit))

    async def describe_role(self, request: DescribeRole) -> RoleDescription:
        self._ask(Action.SECURITY_SHOW)
        return self._described(request.role)

    def _described(self, name: str) -> RoleDescription:
        return RoleDescription(name, self._roles.role(name).permissions, name in SYSTEM_ROLES)

    async def put_role(self, request: PutRole) -> Done:
        self._ask(Action.SECURITY_CHANGE)
        await self._roles.put_role(request.role, request.permissions)
        return Done()

    async def delete_role(self, request: DeleteRole) -> Done:
        self._ask(Action.SECURITY_CHANGE)
        await self._roles.delete_role(request.role)
        return Done()

    # -- bindings ------------------------------------------------------------------------------------------------------

    async def list_bindings(self, request: ListBindings) -> Bindings:
        """Those that fit everything that is given."""
        self._ask(Action.SECURITY_SHOW)
        found: list[BindingDescription] = []
        enough = min(request.limit, LISTED_MAX) + 1
        wanted = [
            (name, value)
            for name in ("principal_type", "principal_name", "scope", "resource")
            if (value := getattr(request, name))
        ]
        for number, (id, binding) in enumerate(self._roles.listed_bindings(request.after), 1):
            if all(getattr(binding, name) == value for name, value in wanted):
                found.append(_described(id, binding))
                if len(found) == enough:
                    break
            if not number % BINDINGS_A_TURN:
                await asyncio.sleep(0)  # lets other tasks run
        return Bindings(*page(found, request.limit))

    async def describe_binding(self, request: DescribeBinding) -> BindingDescription:
        self._ask(Action.SECURITY_SHOW)
        return _described(request.binding, self._roles.binding(request.binding))

    async def put_binding(self, request: PutBinding) -> Done:
        self._ask(Action.SECURITY_CHANGE)
        binding = Binding(
            request.principal_type, request.principal_name, request.roles, request.scope, request.resource
        )
        await self._roles.put_binding(request.binding, binding)
        return Done()

    async def delete_binding(self, request: DeleteBinding) -> Done:
        self._ask(Action.SECURITY_CHANGE)
        await self._roles.delete_binding(request.binding)
        return Done()

    # -- what a principal may do ---------------------------------------------------------------------------------------

    async def who_am_i(self, request: WhoAmI) -> Identity:
        self._ask(Action.SECURITY_SELF)
        principal, security = self._principal, self._door.security
        return Identity(
            principal.kind,
            principal.name,
            security is not None,
            security is None or security.policy.is_super_admin(principal),
            None if security is None else principal.expires,
        )

    async def can_i(self, request: CanI) -> Decision:
        """About another principal, only a caller that may see the bindings learns something."""
        principal = self._principal
        if request.principal_type or request.principal_name:
            self._ask(Action.SECURITY_SHOW)
            principal = _principal(request)
        else:
            self._ask(Action.SECURITY_SELF)
        action = next((each for each in Action if each == request.action), None)
        if action is None:
            raise RequestInvalid(f"{shown(request.action)} is not an action of docs/security.md")
        needs, kind = TABLE[action]
        resource = resource_named(kind, request.resource)
        security = self._door.security
        if security is None:
            return Decision(True, "this broker has no authentication, and allows everything", needs)
        decision = security.decide(principal, action, resource)
        return Decision(decision.allowed, decision.why, needs, decision.binding)

    carries_out: ClassVar = (
        ListRoles.carried_out_by(list_roles),
        DescribeRole.carried_out_by(describe_role),
        PutRole.carried_out_by(put_role),
        DeleteRole.carried_out_by(delete_role),
        ListBindings.carried_out_by(list_bindings),
        DescribeBinding.carried_out_by(describe_binding),
        PutBinding.carried_out_by(put_binding),
        DeleteBinding.carried_out_by(delete_binding),
        WhoAmI.carried_out_by(who_am_i),
        CanI.carried_out_by(can_i),
    )


def _described(id: str, binding: Binding) -> BindingDescription:
    return BindingDescription(
        id, binding.principal_type, binding.principal_name, binding.roles, binding.scope, binding.resource
    )


def _principal(request: CanI) -> Principal:
    kind = next((each for each in BOUND_KINDS if each == request.principal_type), None)
    if kind is None:
        raise RequestInvalid(f"principal_type must be {listed(BOUND_KINDS)}, got {shown(request.principal_type)}")
    return Principal(kind, request.principal_name)
