"""`danube_admin`: brokers, namespaces, topics and subscriptions managed from outside. Translates, and decides nothing.

What needs several brokers is not here, and so is answered with UNIMPLEMENTED.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.consumers import NUMBERS
from pydanube.api.grpc.messages import Messages
from pydanube.api.operations.verbs import topics_of
from pydanube.base.errors import (
    BrokerNotFound,
    ConsumerBusy,
    NotReliable,
    NotServed,
    RequestInvalid,
    SubscriptionNotFound,
    SubscriptionOptionInvalid,
    TopicClosed,
)
from pydanube.base.limits import LISTED_MAX, MILLISECOND, TOPICS_A_TURN
from pydanube.base.names import parse_topic
from pydanube.broker.directory.directory import TopicRecord
from pydanube.broker.door.admin import SubscriptionStats
from pydanube.broker.limits.policies import Policies
from pydanube.broker.serving.open_topic import ANONYMOUS
from pydanube.dispatch.policy import Backoff, FailurePolicy, PoisonPolicy

if TYPE_CHECKING:
    from pydanube.api.grpc.face import GrpcFace

BROKER = "1"  # the id of the only one
BACKOFFS = {0: Backoff.FIXED, 1: Backoff.EXPONENTIAL}
POISONS = {0: PoisonPolicy.DEAD_LETTER, 1: PoisonPolicy.BLOCK, 2: PoisonPolicy.DROP}
admin = Messages("danube_admin")


class BrokerAdmin:
    name = "danube_admin.BrokerAdmin"

    def __init__(self, face: GrpcFace) -> None:
        self._face = face

    async def list_brokers(self, call: Call, request: Any) -> Any:
        answer = admin.BrokerListResponse()
        answer.brokers.add(
            broker_id=BROKER,
            broker_addr=self._face.url,
            broker_role="Cluster_Leader",
            admin_addr=self._face.admin_url,
            metrics_addr=self._face.url,
            broker_status="draining" if self._face.service.stopping else "active",
        )
        return answer

    async def get_leader_broker(self, call: Call, request: Any) -> Any:
        """The only broker there is decides everything."""
        return admin.BrokerResponse(leader=BROKER)

    async def list_namespaces(self, call: Call, request: Any) -> Any:
        return admin.NamespaceListResponse(namespaces=self._face.service.namespaces(ANONYMOUS))

    async def activate_broker(self, call: Call, request: Any) -> Any:
        """It always is, until it stops; there is no other."""
        if request.broker_id != BROKER:
            raise BrokerNotFound(f"broker {request.broker_id!r:.100} does not exist; the only one is {BROKER!r}")
        if self._face.service.stopping:
            raise TopicClosed("the broker is stopping")
        return admin.ActivateBrokerResponse(success=True)


class ClusterAdmin:
    name = "danube_admin.ClusterAdmin"

    def __init__(self, face: GrpcFace) -> None:
        self._face = face


class NamespaceAdmin:
    name = "danube_admin.NamespaceAdmin"

    def __init__(self, face: GrpcFace) -> None:
        self._face = face

    async def get_namespace_topics(self, call: Call, request: Any) -> Any:
        """Without the leading slash, as ever; partitions are topics here."""
        records = await topics_of(self._face.service, ANONYMOUS, request.name)
        names = [name.removeprefix("/") async for name, _ in _places(records)]
        return admin.TopicListResponse(topics=names)

    async def get_namespace_policies(self, call: Call, request: Any) -> Any:
        policies = await self._face.service.namespace_policies(ANONYMOUS, request.name)
        return admin.PolicyResponse(policies=json.dumps(_policies(policies)))

    async def create_namespace(self, call: Call, request: Any) -> Any:
        await self._face.service.create_namespace(ANONYMOUS, request.name, {})
        return admin.NamespaceResponse(success=True)

    async def delete_namespace(self, call: Call, request: Any) -> Any:
        await self._face.service.delete_namespace(ANONYMOUS, request.name)
        return admin.NamespaceResponse(success=True)


class TopicAdmin:
    name = "danube_admin.TopicAdmin"

    def __init__(self, face: GrpcFace) -> None:
        self._face = face

    # -- topics --------------------------------------------------------------------------------------------------------

    async def list_namespace_topics(self, call: Call, request: Any) -> Any:
        return await _topics(await topics_of(self._face.service, ANONYMOUS, request.name))

    async def list_broker_topics(self, call: Call, request: Any) -> Any:
        service = self._face.service
        names = service.namespaces(ANONYMOUS) if request.broker_id == BROKER else []
        return await _topics([record for name in names for record in await topics_of(service, ANONYMOUS, name)])

    async def create_topic(self, call: Call, request: Any) -> Any:
        await self._create(request.name, request, 0)
        return admin.TopicResponse(success=True)

    async def create_partitioned_topic(self, call: Call, request: Any) -> Any:
        if not request.partitions:
            raise RequestInvalid("a partitioned topic needs at least one partition")
        await self._create(request.base_name, request, request.partitions)
        return admin.TopicResponse(success=True)

    async def _create(self, name: str, request: Any, partitions: int) -> None:
        if request.schema_subject:
            raise NotServed("topics with a schema are not supported yet (there is no schema registry)")
        if request.dispatch_strategy not in (0, 1):
            raise RequestInvalid(f"unknown dispatch strategy {request.dispatch_strategy}")
        reliable = request.dispatch_strategy == 1
        await self._face.service.create_topic(ANONYMOUS, name, reliable=reliable, partitions=partitions)

    async def delete_topic(self, call: Call, request: Any) -> Any:
        """All its partitions with it; one of them alone cannot go."""
        if parse_topic(request.name).partition is not None:
            raise RequestInvalid(f"{request.name} is a partition; delete its topic")
        await self._face.service.delete_topic(ANONYMOUS, request.name)
        return admin.TopicResponse(success=True)

    async def describe_topic(self, call: Call, request: Any) -> Any:
        record = await self._face.service.topic(ANONYMOUS, request.name)
        names = await self._subscriptions(request.name)
        return admin.DescribeTopicResponse(
            name=request.name, subscriptions=names, broker_id=BROKER, delivery=_delivery(record)
        )

    # -- subscriptions -------------------------------------------------------------------------------------------------

    async def list_subscriptions(self, call: Call, request: Any) -> Any:
        return admin.SubscriptionListResponse(subscriptions=await self._subscriptions(request.name))

    async def _subscriptions(self, topic: str) -> list[str]:
        names: list[str] = []
        more = True
        while more:
            after = names[-1] if names else ""
            page, more = await self._face.service.admin.subscriptions(ANONYMOUS, topic, after, LISTED_MAX)
            names += [each.name for each in page]
        return names

    async def unsubscribe(self, call: Call, request: Any) -> Any:
        found = await self._describe(request)
        if found.consumers:
            raise ConsumerBusy(f"{request.subscription!r} has {found.consumers} consumers")
        await self._face.service.admin.unsubscribe(ANONYMOUS, request.topic, request.subscription)
        return admin.SubscriptionResponse(success=True)

    async def set_subscription_failure_policy(self, call: Call, request: Any) -> Any:
        await self._alter(request, {"failure": _failure(request.failure_policy)})
        return admin.SubscriptionResponse(success=True)

    async def get_subscription_failure_policy(self, call: Call, request: Any) -> Any:
        answer = admin.GetSubscriptionFailurePolicyResponse()
        try:
            found = await self._describe(request)
            answer.subscription_type = NUMBERS[found.kind]
            policy = found.options.failure
        except SubscriptionNotFound:
            options = self._face.service.pending.find(request.topic, request.subscription)
            if options is None:
                return answer
            policy = options.failure
        _describe_failure(answer.failure_policy, policy)
        return answer

    async def set_subscription_dispatch_config(self, call: Call, request: Any) -> Any:
        await self._alter(request, {"dispatch": {"unacked_max": request.dispatch_config.max_unacked_messages}})
        return admin.SubscriptionResponse(success=True)

    async def get_subscription_dispatch_config(self, call: Call, request: Any) -> Any:
        answer = admin.GetSubscriptionDispatchConfigResponse()
        try:
            dispatch = (await self._describe(request)).options.dispatch
        except SubscriptionNotFound:
            options = self._face.service.pending.find(request.topic, request.subscription)
            if options is None:
                return answer
            dispatch = options.dispatch
        answer.dispatch_config.max_unacked_messages = dispatch.unacked_max
        return answer

    async def _describe(self, request: Any) -> SubscriptionStats:
        return await self._face.service.admin.describe_subscription(ANONYMOUS, request.topic, request.subscription)

    async def _alter(self, request: Any, changes: dict[str, Any]) -> None:
        """Of a running subscription at once; where it is not there yet, when it is made."""
        await self._face.service.errands.run(self._alter_all(request, changes))

    async def _alter_all(self, request: Any, changes: dict[str, Any]) -> None:
        service, pending = self._face.service, self._face.service.pending
        topic, name = request.topic, request.subscription
        record = await service.topic(ANONYMOUS, topic)
        if not record.reliable:
            raise NotReliable(f"{topic} is not reliable, so its subscriptions have no options")
        more_may_come = record.partitions and parse_topic(topic).partition is None
        if more_may_come:
            pending.check_room(topic, name)
        try:
            altered = await service.admin.alter_subscription(ANONYMOUS, topic, name, changes)
        except SubscriptionNotFound:
            await pending.change(topic, name, changes)
            return
        if more_may_come:
            await pending.put(topic, name, altered.options)


# -- how things are said -----------------------------------------------------------------------------------------------


async def _topics(records: list[TopicRecord]) -> Any:
    answer = admin.TopicInfoListResponse()
    async for name, record in _places(records):
        answer.topics.add(name=name, broker_id=BROKER, delivery=_delivery(record))
    return answer


async def _places(records: list[TopicRecord]) -> AsyncIterator[tuple[str, TopicRecord]]:
    """Each partition is a topic here. There may be very many: some in each turn of the loop."""
    names = ((str(place), record) for record in records for place in record.places())
    while some := list(islice(names, TOPICS_A_TURN)):
        for each in some:
            yield each
        await asyncio.sleep(0)


def _delivery(record: TopicRecord) -> str:
    return "Reliable" if record.reliable else "NonReliable"


def _policies(policies: Policies) -> dict[str, int]:
    """The seven numbers that clients know; 0 is no limit."""
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
    """As the options of a subscription say it. A dead letter topic is only kept where it is used."""
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
