"""`danube_admin`: manages brokers, namespaces, topics and subscriptions. It translates, and decides nothing.

Methods that need several brokers are missing here, and so are answered with UNIMPLEMENTED.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

from pydanube.access.rights import Action
from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.consumers import NUMBERS
from pydanube.api.grpc.messages import Messages
from pydanube.base.errors import (
    BrokerNotFound,
    NotServed,
    RequestInvalid,
    SubscriptionOptionInvalid,
    TopicClosed,
)
from pydanube.base.limits import MILLISECOND, TOPICS_A_TURN
from pydanube.base.names import parse_topic
from pydanube.broker.door.values import Policies, TopicRecord
from pydanube.dispatch.policy import BackoffPolicy, FailurePolicy, PoisonPolicy
from pydanube.operations.namespaces import CreateNamespace, DeleteNamespace
from pydanube.operations.operation import read
from pydanube.operations.subscriptions import DeleteSubscription, ListSubscriptions
from pydanube.operations.topics import CreateTopic, DeleteTopic

BROKER = "1"  # the id of the only broker
BACKOFFS = {0: BackoffPolicy.FIXED, 1: BackoffPolicy.EXPONENTIAL}
POISONS = {0: PoisonPolicy.DEAD_LETTER, 1: PoisonPolicy.BLOCK, 2: PoisonPolicy.DROP}
admin = Messages("danube_admin")


class BrokerAdmin:
    name = "danube_admin.BrokerAdmin"

    def __init__(self, url: str, admin_url: str) -> None:
        self._url = url  # where clients reach the broker
        self._admin_url = admin_url

    async def list_brokers(self, call: Call, request: Any) -> Any:
        stopping, answer = call.session.broker.stopping(), admin.BrokerListResponse()
        answer.brokers.add(
            broker_id=BROKER,
            broker_addr=self._url,
            broker_role="Cluster_Leader",
            admin_addr=self._admin_url,
            metrics_addr=self._url,
            broker_status="draining" if stopping else "active",
        )
        return answer

    async def get_leader_broker(self, call: Call, request: Any) -> Any:
        """The only broker is always the leader."""
        call.session.ask(Action.STATUS)
        return admin.BrokerResponse(leader=BROKER)

    async def list_namespaces(self, call: Call, request: Any) -> Any:
        return admin.NamespaceListResponse(namespaces=call.session.namespaces.listed())

    async def activate_broker(self, call: Call, request: Any) -> Any:
        """The only broker is always active until it stops."""
        stopping = call.session.broker.stopping()
        if request.broker_id != BROKER:
            raise BrokerNotFound(f"broker {request.broker_id!r:.100} does not exist; the only one is {BROKER!r}")
        if stopping:
            raise TopicClosed("the broker is stopping")
        return admin.ActivateBrokerResponse(success=True)


class ClusterAdmin:
    name = "danube_admin.ClusterAdmin"


class NamespaceAdmin:
    name = "danube_admin.NamespaceAdmin"

    async def get_namespace_topics(self, call: Call, request: Any) -> Any:
        """Names without the leading slash, as clients expect them; each partition is listed as a topic."""
        records = await call.session.topics.listed(request.name)
        names = [name.removeprefix("/") async for name, _ in _partitions(records)]
        return admin.TopicListResponse(topics=names)

    async def get_namespace_policies(self, call: Call, request: Any) -> Any:
        policies = call.session.namespaces.policies(request.name)
        return admin.PolicyResponse(policies=json.dumps(_policies(policies)))

    async def create_namespace(self, call: Call, request: Any) -> Any:
        await call.session.carry_out(CreateNamespace(request.name))
        return admin.NamespaceResponse(success=True)

    async def delete_namespace(self, call: Call, request: Any) -> Any:
        await call.session.carry_out(DeleteNamespace(request.name))
        return admin.NamespaceResponse(success=True)


class TopicAdmin:
    name = "danube_admin.TopicAdmin"

    # -- topics --------------------------------------------------------------------------------------------------------

    async def list_namespace_topics(self, call: Call, request: Any) -> Any:
        return await _topics(await call.session.topics.listed(request.name))

    async def list_broker_topics(self, call: Call, request: Any) -> Any:
        call.session.ask(Action.TOPIC_LIST)
        return await _topics(await call.session.topics.listed(None) if request.broker_id == BROKER else [])

    async def create_topic(self, call: Call, request: Any) -> Any:
        await self._create(call, request.name, request, 0)
        return admin.TopicResponse(success=True)

    async def create_partitioned_topic(self, call: Call, request: Any) -> Any:
        if not request.partitions:
            raise RequestInvalid("a partitioned topic needs at least one partition")
        await self._create(call, request.base_name, request, request.partitions)
        return admin.TopicResponse(success=True)

    async def _create(self, call: Call, name: str, request: Any, partitions: int) -> None:
        if request.schema_subject:
            raise NotServed("topics with a schema are not supported yet (topics cannot be bound to subjects)")
        if request.dispatch_strategy not in (0, 1):
            raise RequestInvalid(f"unknown dispatch strategy {request.dispatch_strategy}")
        reliable = request.dispatch_strategy == 1
        fields = {"topic": name, "reliable": reliable, "partitions": partitions}
        await call.session.carry_out(read(CreateTopic, fields))

    async def delete_topic(self, call: Call, request: Any) -> Any:
        """Deletes a topic with all its partitions; a single partition cannot be deleted."""
        if parse_topic(request.name).partition is not None:
            raise RequestInvalid(f"{request.name} is a partition; delete its topic")
        await call.session.carry_out(DeleteTopic(request.name))
        return admin.TopicResponse(success=True)

    async def describe_topic(self, call: Call, request: Any) -> Any:
        names = await _subscriptions(call, request.name)
        record = await call.session.topics.lookup(request.name, action=Action.TOPIC_DESCRIBE)
        return admin.DescribeTopicResponse(
            name=request.name, subscriptions=names, broker_id=BROKER, delivery=_delivery(record)
        )

    # -- subscriptions -------------------------------------------------------------------------------------------------

    async def list_subscriptions(self, call: Call, request: Any) -> Any:
        return admin.SubscriptionListResponse(subscriptions=await _subscriptions(call, request.name))

    async def unsubscribe(self, call: Call, request: Any) -> Any:
        asked = DeleteSubscription(request.topic, request.subscription)
        await call.session.subscriptions.delete(asked, only_unused=True)
        return admin.SubscriptionResponse(success=True)

    async def set_subscription_failure_policy(self, call: Call, request: Any) -> Any:
        changes = {"failure": _failure(request.failure_policy)}
        await call.session.subscriptions.set_options(request.topic, request.subscription, changes)
        return admin.SubscriptionResponse(success=True)

    async def get_subscription_failure_policy(self, call: Call, request: Any) -> Any:
        answer = admin.GetSubscriptionFailurePolicyResponse()
        found = await call.session.subscriptions.options(request.topic, request.subscription)
        if found is not None:
            kind, options = found
            if kind is not None:
                answer.subscription_type = NUMBERS[kind]
            _describe_failure(answer.failure_policy, options.failure)
        return answer

    async def set_subscription_dispatch_config(self, call: Call, request: Any) -> Any:
        changes = {"dispatch": {"unacked_max": request.dispatch_config.max_unacked_messages}}
        await call.session.subscriptions.set_options(request.topic, request.subscription, changes)
        return admin.SubscriptionResponse(success=True)

    async def get_subscription_dispatch_config(self, call: Call, request: Any) -> Any:
        answer = admin.GetSubscriptionDispatchConfigResponse()
        found = await call.session.subscriptions.options(request.topic, request.subscription)
        if found is not None:
            answer.dispatch_config.max_unacked_messages = found[1].dispatch.unacked_max
        return answer


async def _subscriptions(call: Call, topic: str) -> list[str]:
    names: list[str] = []
    more = True
    while more:
        page = await call.session.carry_out(ListSubscriptions(topic, after=names[-1] if names else ""))
        names += [each.subscription for each in page.subscriptions]
        more = page.more
    return names


async def _topics(records: list[TopicRecord]) -> Any:
    answer = admin.TopicInfoListResponse()
    async for name, record in _partitions(records):
        answer.topics.add(name=name, broker_id=BROKER, delivery=_delivery(record))
    return answer


async def _partitions(records: list[TopicRecord]) -> AsyncIterator[tuple[str, TopicRecord]]:
    """Each partition as a topic. There may be very many, so each turn of the loop handles some."""
    names = ((str(partition), record) for record in records for partition in record.partition_names())
    while some := list(islice(names, TOPICS_A_TURN)):
        for each in some:
            yield each
        await asyncio.sleep(0)


def _delivery(record: TopicRecord) -> str:
    return "Reliable" if record.reliable else "NonReliable"


def _policies(policies: Policies) -> dict[str, int]:
    """The seven policies that clients know; 0 means no limit."""
    return {
        "max_producers_per_topic": policies.producers_max or 0,
        "max_subscriptions_per_topic": policies.subscriptions_max or 0,
        "max_consumers_per_topic": policies.consumers_max or 0,
        "max_consumers_per_subscription": policies.consumers_per_subscription_max or 0,
        "max_publish_rate": policies.publish_messages_per_second or 0,
        "max_subscription_dispatch_rate": policies.dispatch_messages_per_second or 0,
        "max_message_size": policies.message_bytes_max or 0,
    }


def _failure(policy: Any) -> dict[str, Any]:
    """The policy as options of a subscription. A dead-letter topic is kept only if it is used."""
    backoff, poison = BACKOFFS.get(policy.backoff_strategy), POISONS.get(policy.poison_policy)
    if backoff is None or poison is None:
        raise SubscriptionOptionInvalid("unknown backoff strategy or poison policy")
    return {
        "max_redelivery_count": policy.max_redelivery_count,
        "ack_timeout": policy.ack_timeout_ms / 1000 or None,
        "base_delay": policy.base_redelivery_delay_ms / 1000,
        "max_delay": policy.max_redelivery_delay_ms / 1000,
        "backoff": backoff.value,
        "poison": poison.value,
        "dead_letter_topic": policy.dead_letter_topic or None if poison is PoisonPolicy.DEAD_LETTER else None,
    }


def _describe_failure(answer: Any, policy: FailurePolicy) -> None:
    answer.max_redelivery_count = policy.max_redelivery_count
    answer.ack_timeout_ms = (policy.ack_timeout or 0) // MILLISECOND
    answer.base_redelivery_delay_ms = policy.base_delay // MILLISECOND
    answer.max_redelivery_delay_ms = policy.max_delay // MILLISECOND
    answer.backoff_strategy = next(number for number, each in BACKOFFS.items() if each is policy.backoff)
    answer.poison_policy = next(number for number, each in POISONS.items() if each is policy.poison)
    if policy.dead_letter_topic is not None:
        answer.dead_letter_topic = policy.dead_letter_topic
