"""Who may do what: roles and bindings, the table of actions, and what a decision costs."""

from __future__ import annotations

import time

import pytest

from pydanube.access.attempts import Attempts
from pydanube.access.policy import Binding, Policy, Role, checked_binding, checked_role
from pydanube.access.principals import ANONYMOUS, SYSTEM, Principal, PrincipalKind, TokenPrincipal
from pydanube.access.rights import (
    BROKER,
    Action,
    Resource,
    ResourceKind,
    namespace_resource,
    pipeline_resource,
    sink_resource,
    subject_resource,
    subscription_resource,
    topic_resource,
)
from pydanube.access.table import SYSTEM_ROLES, TABLE, Open, Permission
from pydanube.base.errors import DanubeError, RequestInvalid, RoleFixed, TooManyAttempts
from pydanube.base.limits import AUTH_ADDRESSES_MAX, AUTH_FAILURES_MAX
from pydanube.base.names import parse_topic

ALICE = Principal(PrincipalKind.USER, "alice")
EXAMPLES = {
    ResourceKind.BROKER: BROKER,
    ResourceKind.NAMESPACE: namespace_resource("shop"),
    ResourceKind.TOPIC: topic_resource(parse_topic("/shop/orders")),
    ResourceKind.SUBSCRIPTION: subscription_resource(parse_topic("/shop/orders"), "billing"),
    ResourceKind.SINK: sink_resource("/shop/orders"),
    ResourceKind.PIPELINE: pipeline_resource("flow"),
    ResourceKind.SUBJECT: subject_resource("orders-value"),
}


def bound(role: str, scope: str, resource: str = "", who: Principal = ALICE) -> Binding:
    return checked_binding("b", Binding(str(who.kind), who.name, [role], scope, resource))


def policy(*bindings: Binding, **roles: list[str]) -> Policy:
    found = Policy(["root"])
    for name, permissions in roles.items():
        found.set_role(name, checked_role(name, permissions))
    for number, binding in enumerate(bindings):
        found.set_binding(f"b{number}", binding)
    return found


def may(policy: Policy, action: Action, resource: Resource, who: Principal = ALICE) -> bool:
    return policy.decide(who, action, resource).allowed


def test_the_table_has_a_row_for_every_action() -> None:
    assert list(TABLE) == list(Action) or set(TABLE) == set(Action)


@pytest.mark.parametrize("action", Action)
def test_an_action_is_allowed_by_its_permission_and_by_no_other(action: Action) -> None:
    needed, kind = TABLE[action]
    resource = EXAMPLES[kind]
    others = [str(each) for each in Permission if each != needed]
    without = policy(bound("some", "cluster"), some=others)
    if isinstance(needed, Open):
        assert may(without, action, resource) == (needed is not Open.SYSTEM)
        assert may(without, action, resource, ANONYMOUS) == (needed is Open.EVERYONE)
    else:
        assert not may(policy(), action, resource)
        assert not may(without, action, resource)
        assert not may(without, action, resource, ANONYMOUS)
        assert may(policy(bound("some", "cluster"), some=[str(needed)]), action, resource)
    assert may(policy(), action, resource, SYSTEM)


ORDERS, SECOND, FLOW = (
    EXAMPLES[ResourceKind.TOPIC],
    topic_resource(parse_topic("/shop/other")),
    pipeline_resource("flow"),
)
BILLING, ELSEWHERE = EXAMPLES[ResourceKind.SUBSCRIPTION], topic_resource(parse_topic("/shops/orders"))


@pytest.mark.parametrize(
    ("scope", "resource", "allowed"),
    [
        ("cluster", "", {ORDERS, SECOND, FLOW, BILLING, ELSEWHERE}),
        ("namespace", "shop", {ORDERS, SECOND, BILLING}),
        ("topic", "/shop/orders", {ORDERS, BILLING}),
        ("topic", "/shop/or*", {ORDERS, BILLING}),
        ("topic", "/shop/*", {ORDERS, SECOND, BILLING}),
        ("topic", "/shop/order", set[Resource]()),
        ("topic", "/shops/*", {ELSEWHERE}),
        ("topic", "flow", {FLOW}),
    ],
)
def test_a_binding_reaches_as_far_as_its_scope(scope: str, resource: str, allowed: set[Resource]) -> None:
    found = policy(bound("consumer", scope, resource), bound("producer", scope, resource))
    actions = {
        ORDERS: Action.TOPIC_PUBLISH,
        SECOND: Action.TOPIC_PUBLISH,
        ELSEWHERE: Action.TOPIC_PUBLISH,
        BILLING: Action.SUBSCRIPTION_CONSUME,
        FLOW: Action.PIPELINE_REPORT,
    }
    assert {each for each, action in actions.items() if may(found, action, each)} == allowed
    assert may(found, Action.STATUS, BROKER) == (scope == "cluster")
    assert may(found, Action.TOPIC_LIST, namespace_resource("shop")) == (scope == "cluster" or resource == "shop")


def test_a_decision_names_the_binding_or_what_is_missing() -> None:
    found = policy(bound("viewer", "cluster"), bound("producer", "topic", "/shop/or*"))
    assert found.decide(ALICE, Action.TOPIC_PUBLISH, ORDERS) == (True, "the binding b1 gives Produce", "b1")
    refused = found.decide(ALICE, Action.TOPIC_PUBLISH, SECOND)
    assert refused.why == (
        "no binding gives user alice the permission Produce for /shop/other, or anything that contains it"
    )
    assert "Produce for the cluster" not in refused.why
    assert "ManageCluster for the cluster" in found.decide(ALICE, Action.BACKUP, BROKER).why


def test_changes_count_at_once() -> None:
    found = policy(bound("writer", "cluster"), writer=["Produce"])
    assert may(found, Action.TOPIC_PUBLISH, ORDERS)
    found.set_role("writer", Role(["Consume"]))
    assert not may(found, Action.TOPIC_PUBLISH, ORDERS)
    assert may(found, Action.TOPIC_READ, ORDERS)
    found.set_role("writer", None)
    assert not may(found, Action.TOPIC_READ, ORDERS)
    found.set_binding("b0", bound("producer", "namespace", "shop"))
    assert may(found, Action.TOPIC_PUBLISH, ORDERS)
    found.set_binding("b0", bound("producer", "namespace", "shop", Principal(PrincipalKind.USER, "bob")))
    assert not may(found, Action.TOPIC_PUBLISH, ORDERS)
    found.set_binding("b0", None)
    found.set_binding("b0", None)
    assert found._by_principal == {}


def test_roles_of_the_system_are_fixed() -> None:
    for name in SYSTEM_ROLES:
        with pytest.raises(RoleFixed):
            checked_role(name, ["Lookup"])
    found = policy(bound("viewer", "cluster"))
    found.set_role("viewer", Role(["Produce"]))
    assert not may(found, Action.TOPIC_PUBLISH, ORDERS)


def test_types_of_principals_are_told_apart() -> None:
    found = policy(bound("admin", "cluster"))
    assert may(found, Action.BACKUP, BROKER, TokenPrincipal.of(PrincipalKind.USER, "alice", 1))
    assert not may(found, Action.BACKUP, BROKER, Principal(PrincipalKind.SERVICE_ACCOUNT, "alice"))
    assert not may(found, Action.BACKUP, BROKER, Principal(PrincipalKind.ANONYMOUS, "root"))
    assert may(found, Action.BACKUP, BROKER, Principal(PrincipalKind.SERVICE_ACCOUNT, "root"))
    assert may(found, Action.BACKUP, BROKER, Principal(PrincipalKind.BROKER, "2"))


@pytest.mark.parametrize(
    "binding",
    [
        Binding("robot", "alice", ["admin"], "cluster"),
        Binding("system", "system", ["admin"], "cluster"),
        Binding("user", "", ["admin"], "cluster"),
        Binding("user", "a\nb", ["admin"], "cluster"),
        Binding("user", "alice", [], "cluster"),
        Binding("user", "alice", ["admin"] * 100, "cluster"),
        Binding("user", "alice", ["admin"], "broker"),
        Binding("user", "alice", ["admin"], "cluster", "shop"),
        Binding("user", "alice", ["admin"], "namespace", ""),
        Binding("user", "alice", ["admin"], "namespace", "/shop"),
        Binding("user", "alice", ["admin"], "topic", ""),
        Binding("user", "alice", ["admin"], "topic", "*"),
        Binding("user", "alice", ["admin"], "topic", "/*"),
        Binding("user", "alice", ["admin"], "topic", "/*/orders"),
        Binding("user", "alice", ["admin"], "topic", "/shop/*s"),
        Binding("user", "alice", ["admin"], "topic", "/shop/a/b"),
        Binding("user", "alice", ["admin"], "topic", "/shop/../x"),
        Binding("user", "alice", ["admin"], "topic", "/shop/orders-part-1"),
        Binding("user", "alice", ["admin"], "topic", "a/b"),
    ],
)
def test_a_binding_that_could_mean_nothing_is_refused(binding: Binding) -> None:
    with pytest.raises(DanubeError) as refused:
        checked_binding("b", binding)
    assert refused.value.blame == "caller"


@pytest.mark.parametrize("id", ["", " ", "a/b", "a\r", "ä", "-a", "a" * 256])
def test_a_name_that_could_be_a_path_is_refused(id: str) -> None:
    with pytest.raises(RequestInvalid):
        checked_binding(id, bound("admin", "cluster"))
    with pytest.raises(RequestInvalid):
        checked_role(id, [])


def test_an_unknown_permission_is_refused() -> None:
    with pytest.raises(RequestInvalid, match=r"must be Lookup, .* or ManageCluster, got 'lookup'"):
        checked_role("some", ["lookup"])


def test_a_decision_takes_no_longer_with_ten_thousand_principals() -> None:
    """Compared with one principal in the same run, so that a slow machine makes both slow."""

    def seconds(count: int) -> float:
        found = policy()
        people = [Principal(PrincipalKind.USER, f"user{number}") for number in range(count)]
        for number, each in enumerate(people):
            found.set_binding(f"b{number}", bound("producer", "topic", f"/shop/t{number % 100}*", each))
        for each in people:
            found.decide(each, Action.TOPIC_PUBLISH, ORDERS)
        best = 1.0
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(2_000):
                found.decide(people[-1], Action.TOPIC_PUBLISH, ORDERS)
            best = min(best, time.perf_counter() - began)
        return best

    assert seconds(10_000) < 5 * seconds(1)


def test_wrong_credentials_of_an_address_are_slowed_down() -> None:
    attempts = Attempts()
    for _ in range(AUTH_FAILURES_MAX):
        attempts.check("a", 10.0)
        attempts.failed("a", 10.0)
    with pytest.raises(TooManyAttempts):
        attempts.check("a", 10.0)
    attempts.check("b", 10.0)
    attempts.check("a", 11.0)
    attempts.failed("a", 11.0)
    with pytest.raises(TooManyAttempts):
        attempts.check("a", 11.5)
    attempts.check("a", 1_000.0)


def test_the_addresses_of_attempts_are_bounded() -> None:
    attempts = Attempts()
    for number in range(AUTH_ADDRESSES_MAX + 10):
        attempts.failed(str(number), 1.0)
    assert len(attempts._failures) == AUTH_ADDRESSES_MAX
