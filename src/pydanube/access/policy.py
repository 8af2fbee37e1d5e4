"""Roles, bindings, and what follows from them. Everything that no binding allows is refused.

The rights of a principal are put together when it is first asked about, and again after a change; from then on, a
decision takes a few lookups, however many principals and bindings there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from pydanube.access.principals import BOUND_KINDS, Principal, PrincipalKind
from pydanube.access.rights import Action, Resource, ResourceKind
from pydanube.access.table import SYSTEM_ROLES, TABLE, Open, Permission
from pydanube.base.errors import LimitReached, RequestInvalid, RoleFixed, RoleNotFound
from pydanube.base.fields import listed, shown
from pydanube.base.limits import (
    BINDINGS_MAX,
    NAME_BYTES_MAX,
    ROLES_MAX,
    ROLES_PER_BINDING_MAX,
)
from pydanube.base.names import check_namespace, parse_topic

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,254}", re.ASCII)
_PREFIX = re.compile(r"/([^/*]+)/([^/*]*)\*")


class Scope(StrEnum):
    """What a binding is about."""

    CLUSTER = "cluster"
    NAMESPACE = "namespace"
    TOPIC = "topic"


class Role(msgspec.Struct, frozen=True):
    permissions: list[str]


class Binding(msgspec.Struct, frozen=True):
    """Gives the roles to a principal, for the whole cluster, a namespace, a topic, or all topics that begin alike.

    With the scope `topic`, the resource is `/namespace/topic`, `/namespace/prefix*`, or the name of a pipeline.
    """

    principal_type: str
    principal_name: str
    roles: list[str]
    scope: str
    resource: str = ""


class Decision(NamedTuple):
    allowed: bool
    why: str  # the rule or the binding that allows it, or what is missing
    binding: str | None = None  # its id


def checked_role(name: str, permissions: Iterable[str]) -> Role:
    """The role, if that is one; raises `RequestInvalid`, and `RoleFixed` for a role of the system."""
    _check_id("role", name)
    if name in SYSTEM_ROLES:
        raise RoleFixed(f"{name} is a role of the system")
    known = [str(each) for each in Permission]
    chosen = list(dict.fromkeys(permissions))
    for each in chosen:
        if each not in known:
            raise RequestInvalid(f"a permission must be {listed(known)}, got {shown(each)}")
    return Role(chosen)


def checked_binding(id: str, binding: Binding) -> Binding:
    """The binding, if that is one; raises `RequestInvalid`."""
    _check_id("binding", id)
    kinds = [str(kind) for kind in BOUND_KINDS]
    if binding.principal_type not in kinds:
        raise RequestInvalid(f"principal_type must be {listed(kinds)}, got {shown(binding.principal_type)}")
    name = binding.principal_name
    if not name.isprintable() or not 0 < len(name.encode(errors="replace")) <= NAME_BYTES_MAX:
        raise RequestInvalid(f"principal_name must have 1 to {NAME_BYTES_MAX} printable bytes")
    if not 0 < len(binding.roles) <= ROLES_PER_BINDING_MAX:
        raise RequestInvalid(f"a binding must have 1 to {ROLES_PER_BINDING_MAX} roles, got {len(binding.roles)}")
    scopes = [str(scope) for scope in Scope]
    if binding.scope not in scopes:
        raise RequestInvalid(f"scope must be {listed(scopes)}, got {shown(binding.scope)}")
    _check_resource(binding)
    return binding


def _check_resource(binding: Binding) -> None:
    resource = binding.resource
    if binding.scope == Scope.CLUSTER:
        if resource not in ("", "*"):
            raise RequestInvalid(f"a binding for the cluster has no resource, got {shown(resource)}")
    elif binding.scope == Scope.NAMESPACE:
        check_namespace(resource)
    elif (pattern := _PREFIX.fullmatch(resource)) is not None:
        check_namespace(pattern[1])
        if pattern[2]:
            parse_topic(f"/{pattern[1]}/{pattern[2]}x")  # a prefix may end as no name does
    elif resource.startswith("/"):
        if parse_topic(resource).partition is not None:
            raise RequestInvalid(f"{resource} is a single partition; rights to a topic apply to all its partitions")
    else:
        _check_id("resource", resource)


def _check_id(what: str, name: str) -> None:
    if _ID.fullmatch(name) is None:
        raise RequestInvalid(
            f"{shown(name)} is not a valid name of a {what}: use letters, digits, and _ . : @ - (255 at most)"
        )


_ByPermission = dict[str, str]  # the first binding that gives a permission, by the permission


class _Rights:
    """Everything that the bindings of one principal allow."""

    __slots__ = ("cluster", "lengths", "namespaces", "prefixes", "topics")

    def __init__(self) -> None:
        self.cluster: _ByPermission = {}
        self.namespaces: dict[str, _ByPermission] = {}
        self.topics: dict[str, _ByPermission] = {}
        self.prefixes: dict[str, _ByPermission] = {}
        self.lengths: list[int] = []  # of the prefixes: so few that a decision takes no longer with many of them

    def add(self, id: str, binding: Binding, permissions: Iterable[str]) -> None:
        resource = binding.resource
        if binding.scope == Scope.CLUSTER:
            place = self.cluster
        elif binding.scope == Scope.NAMESPACE:
            place = self.namespaces.setdefault(resource, {})
        elif resource.endswith("*"):
            place = self.prefixes.setdefault(resource[:-1], {})
            if len(resource) - 1 not in self.lengths:
                self.lengths.append(len(resource) - 1)
        else:
            place = self.topics.setdefault(resource, {})
        for each in permissions:
            place.setdefault(each, id)

    def find(self, permission: str, namespace: str, name: str) -> str | None:
        """The binding that gives the permission there; `name` is empty if it is not about a topic or pipeline."""
        found = self.cluster.get(permission)
        if found is None and namespace:
            found = self.namespaces.get(namespace, {}).get(permission)
        if found is None and name:
            found = self.topics.get(name, {}).get(permission)
            for length in self.lengths if found is None else ():
                found = found or self.prefixes.get(name[:length], {}).get(permission)
        return found


_NOTHING = _Rights()


class Policy:
    """All roles and bindings. Changed by what follows the metadata; otherwise it only decides."""

    def __init__(self, super_admins: Iterable[str] = ()) -> None:
        self._super_admins = frozenset(super_admins)
        self.roles: dict[str, Role] = {}  # without those of the system
        self.bindings: dict[str, Binding] = {}
        self._by_principal: dict[tuple[str, str], dict[str, Binding]] = {}
        self._rights: dict[tuple[str, str], _Rights] = {}

    # -- changes -------------------------------------------------------------------------------------------------------

    def set_role(self, name: str, role: Role | None) -> None:
        if role is None:
            self.roles.pop(name, None)
        else:
            self.roles[name] = role
        self._rights.clear()

    def set_binding(self, id: str, binding: Binding | None) -> None:
        before = self.bindings.pop(id, None)
        if before is not None:
            who = before.principal_type, before.principal_name
            del self._by_principal[who][id]
            if not self._by_principal[who]:
                del self._by_principal[who]
            self._rights.pop(who, None)
        if binding is not None:
            who = binding.principal_type, binding.principal_name
            self.bindings[id] = binding
            self._by_principal.setdefault(who, {})[id] = binding
            self._rights.pop(who, None)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def is_super_admin(self, principal: Principal) -> bool:
        """Other brokers are too: only the cluster's own secret can name them."""
        return principal.kind is PrincipalKind.BROKER or (
            principal.kind in BOUND_KINDS and principal.name in self._super_admins
        )

    def decide(self, principal: Principal, action: Action, resource: Resource) -> Decision:
        needed = TABLE[action][0]
        if principal.kind is PrincipalKind.SYSTEM:
            return Decision(True, "it is the broker itself")
        if isinstance(needed, Open):
            allowed = needed is Open.EVERYONE or (
                needed is Open.AUTHENTICATED and principal.kind is not PrincipalKind.ANONYMOUS
            )
            return Decision(allowed, f"it is for {needed}")
        if self.is_super_admin(principal):
            return Decision(True, f"{principal} is a super-admin")
        namespace, name = place_of(resource)
        found = self._rights_of(principal).find(needed, namespace, name)
        if found is not None:
            return Decision(True, f"the binding {found} gives {needed}", found)
        where = "the cluster" if not namespace and not name else f"{name or namespace}, or anything that contains it"
        return Decision(False, f"no binding gives {principal} the permission {needed} for {where}")

    def _rights_of(self, principal: Principal) -> _Rights:
        who = str(principal.kind), principal.name
        found = self._rights.get(who)
        if found is not None:
            return found
        bindings = self._by_principal.get(who)
        if bindings is None:
            return _NOTHING  # not remembered: there may be any number of principals without bindings
        found = self._rights[who] = _Rights()
        for id, binding in sorted(bindings.items()):
            for role in binding.roles:
                if role in SYSTEM_ROLES:
                    found.add(id, binding, map(str, SYSTEM_ROLES[role]))
                elif role in self.roles:
                    found.add(id, binding, self.roles[role].permissions)
        return found


def place_of(resource: Resource) -> tuple[str, str]:
    """The namespace that the resource is in, and the name that a binding for it alone has; empty if there is none."""
    kind, name, topic = resource
    if kind is ResourceKind.NAMESPACE:
        return name, ""
    if kind is ResourceKind.SUBSCRIPTION:
        name = topic
    if name.startswith("/"):
        return name[1:].partition("/")[0], name
    return "", "" if kind is ResourceKind.BROKER else name


def check_role_room(count: int) -> None:
    """Called before another role is made."""
    if count >= ROLES_MAX:
        raise LimitReached(f"there are already {ROLES_MAX} roles")


def check_binding_room(count: int) -> None:
    """Called before another binding is made."""
    if count >= BINDINGS_MAX:
        raise LimitReached(f"there are already {BINDINGS_MAX} bindings")


def check_role_exists(name: str, stored: bool) -> None:
    """Called with each role of a new binding, and whether the metadata has it."""
    if name not in SYSTEM_ROLES and not stored:
        raise RoleNotFound(f"there is no role {shown(name)}")
