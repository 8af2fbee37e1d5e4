"""Operations on namespaces."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from pydanube.base.limits import LISTED_MAX
from pydanube.operations.fields import After, DryRun, Limit
from pydanube.operations.operation import Answer, Done, Request, operation
from pydanube.operations.policies import Policies, PolicyChanges


class NamespacePolicies(Answer):
    policies: Policies


class Namespace(Answer):
    namespace: str
    policies: Policies


class Namespaces(Answer):
    namespaces: list[str]
    more: Annotated[bool, Meta(description="whether there are more after the last one")]


@operation("namespace.create", "Create a namespace", changes=True)
class CreateNamespace(Request[Done]):
    namespace: str
    policies: PolicyChanges = field(default_factory=PolicyChanges)


@operation("namespace.list", "List namespaces by name")
class ListNamespaces(Request[Namespaces]):
    after: After = ""
    limit: Limit = LISTED_MAX


@operation("namespace.describe", "Get the policies of a namespace")
class DescribeNamespace(Request[Namespace]):
    namespace: str


@operation("namespace.policies", "Change policies of a namespace", changes=True)
class AlterNamespace(Request[NamespacePolicies]):
    namespace: str
    policies: PolicyChanges


@operation("namespace.delete", "Delete an empty namespace", changes=True)
class DeleteNamespace(Request[Done]):
    namespace: str
    dry_run: DryRun = False
