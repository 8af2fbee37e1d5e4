"""Whatever a test does to a broker, what it had promised is there: the kit is as honest as the broker."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pydanube.sync
from pydanube.testing.broker import broker_beside

TOPIC = "/default/orders"
ACTIONS = st.lists(st.sampled_from(["send", "ack", "restart", "crash", "full"]), min_size=3, max_size=9)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=ACTIONS)
def test_what_was_sent_is_there_and_what_was_acked_never_comes_again(actions: list[str]) -> None:
    sent: list[bytes] = []
    acked: set[bytes] = set()

    with broker_beside() as beside, pydanube.sync.connect(beside.url) as client:
        client.admin.create_topic(TOPIC, policies={"retention_seconds": 3600})
        client.admin.create_subscription(TOPIC, "s", type="shared")
        with client.producer(TOPIC) as producer:
            for action in actions:
                if action == "send":
                    sent.append(b"%d" % len(sent))
                    producer.send(sent[-1]).result()
                elif action == "ack" and len(acked) < len(sent):
                    with client.consumer(TOPIC, subscription="s", type="shared") as consumer:
                        message = consumer.receive(10)
                        assert message.payload not in acked
                        consumer.ack(message).result()
                        acked.add(message.payload or b"")
                elif action == "full":
                    beside.fill_disk()
                    sent.append(b"%d" % len(sent))
                    waiting = producer.send(sent[-1])
                    beside.free_disk()
                    waiting.result()
                elif action != "ack":
                    getattr(beside, action)()
                    client.admin.namespaces()  # answered, so it is connected again
        assert [message.payload for message in client.admin.peek(TOPIC, 100)] == sent
        assert client.admin.subscriptions(TOPIC)[0]["backlog"] == len(sent) - len(acked)
