"""Principals and resources: who is asked about, and what."""

from __future__ import annotations

from pydanube.access.principals import ANONYMOUS, SYSTEM
from pydanube.access.rights import BROKER, Action, authorise, namespace_resource, subscription_resource, topic_resource
from pydanube.base.names import parse_topic


def test_everybody_may_do_everything_for_now() -> None:
    for action in Action:
        for principal in (ANONYMOUS, SYSTEM):
            authorise(principal, action, BROKER)


def test_a_partition_is_asked_about_as_its_topic() -> None:
    whole, partition = parse_topic("/default/orders"), parse_topic("/default/orders-part-3")
    assert topic_resource(partition) == topic_resource(whole)
    assert subscription_resource(partition, "billing") == subscription_resource(whole, "billing")


def test_a_resource_says_what_it_is() -> None:
    orders = parse_topic("/default/orders")
    assert [str(BROKER), str(namespace_resource("default"))] == ["the broker", "namespace default"]
    assert str(topic_resource(orders)) == "topic /default/orders"
    assert str(subscription_resource(orders, "billing")) == "subscription billing of /default/orders"
    assert (str(ANONYMOUS), str(SYSTEM)) == ("anonymous", "system")
