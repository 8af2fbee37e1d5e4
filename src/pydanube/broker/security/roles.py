"""Roles and bindings in the metadata: the only writer of both tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydanube.access.policy import (
    Binding,
    Role,
    check_binding_room,
    check_role_exists,
    check_role_room,
    checked_binding,
    checked_role,
)
from pydanube.access.table import SYSTEM_ROLES
from pydanube.base.errors import BindingNotFound, RoleFixed, RoleNotFound
from pydanube.base.fields import shown
from pydanube.metadata.tables import BINDINGS, ROLES
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.metadata.table import Table


class Roles:
    """The roles and bindings of a cluster. What decides by them follows `roles` and `bindings`."""

    def __init__(self, store: MetadataStore) -> None:
        self.roles = Table(store, ROLES)
        self.bindings = Table(store, BINDINGS)

    # -- roles ---------------------------------------------------------------------------------------------------------

    def role(self, name: str) -> Role:
        if name in SYSTEM_ROLES:
            return Role([str(each) for each in SYSTEM_ROLES[name]])
        found = self.roles.get(name)
        if found is None:
            raise RoleNotFound(f"there is no role {shown(name)}")
        return found

    def listed_roles(self, after: str, limit: int) -> list[str]:
        """Names, sorted; those of the system are among them."""
        stored = [row.key for row in self.roles.scan(after=after, limit=limit)]
        return sorted([*stored, *(name for name in SYSTEM_ROLES if name > after)])[:limit]

    async def put_role(self, name: str, permissions: Sequence[str]) -> None:
        """Creates the role, or changes its permissions."""
        role = checked_role(name, permissions)
        if not self.roles.version(name):
            check_role_room(self.roles.count())
        await self.roles.write(name, role)

    async def delete_role(self, name: str) -> None:
        if name in SYSTEM_ROLES:
            raise RoleFixed(f"{name} is a role of the system")
        self.role(name)
        await self.roles.write(name, None)

    # -- bindings ------------------------------------------------------------------------------------------------------

    def binding(self, id: str) -> Binding:
        found = self.bindings.get(id)
        if found is None:
            raise BindingNotFound(f"there is no binding {shown(id)}")
        return found

    def listed_bindings(self, after: str) -> Iterator[tuple[str, Binding]]:
        """Sorted by id."""
        return ((row.key, row.record) for row in self.bindings.scan(after=after))

    async def put_binding(self, id: str, binding: Binding) -> None:
        """Creates the binding, or replaces it."""
        checked_binding(id, binding)
        for name in binding.roles:
            check_role_exists(name, bool(self.roles.version(name)))
        if not self.bindings.version(id):
            check_binding_room(self.bindings.count())
        await self.bindings.write(id, binding)

    async def delete_binding(self, id: str) -> None:
        self.binding(id)
        await self.bindings.write(id, None)
