"""A key is in one partition, whoever sends it, and through whichever face."""

from __future__ import annotations

import asyncio
import json
import sys
from subprocess import run
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from grpc import StatusCode

import pydanube
import pydanube.sync
from grpc_face.rig import Broker, Producers, api, channel, connect, message, producer, refused
from pydanube.base.errors import KeyTooLong
from pydanube.base.keys import KeyHash
from pydanube.base.limits import KEY_BYTES_MAX
from spark.sink_world import Run, rows

PARTITIONS = 8
KEYS = [f"key-{number}" for number in range(40)] + ["", "Ünïcödé", "k" * 300]
SENDERS = ("public", "client", "client, many", "sync", "command", "REST", "Spark")


def test_every_face_sends_a_key_to_the_same_partition(broker: Broker, topic: str) -> None:
    url = broker.url.replace("http", "danube")
    with pydanube.sync.connect(url) as client:
        client.admin.create_topic(topic, partitions=PARTITIONS)
        asyncio.run(_public(broker, topic))
        asyncio.run(_native(url, topic))
        with client.producer(topic) as sync:
            for key in KEYS:
                sync.send(b"sync", key=key).result()
        _command(url, topic)
        messages = [{"key": key, "value": "REST"} for key in KEYS]
        body = json.dumps({"messages": messages}).encode()
        address, kind = f"{broker.url}/api/v1/topics{topic}/messages", {"Content-Type": "application/json"}
        urlopen(Request(address, body, kind)).close()
        Run(url, topic).write(0, rows(value=[b"Spark"] * len(KEYS), key=KEYS))

        places: dict[str, set[int]] = {}
        senders: dict[str, set[str]] = {}
        for partition in range(PARTITIONS):
            table = client.read_arrow(f"{topic}-part-{partition}")
            for key, payload in zip(table.column("key").to_pylist(), table.column("payload").to_pylist(), strict=True):
                places.setdefault(key.decode(), set()).add(partition)
                senders.setdefault(key.decode(), set()).add(payload.decode())
        assert places == {key: {KeyHash.FNV1A64.partition(key.encode(), PARTITIONS)} for key in KEYS}
        assert {key: sorted(found) for key, found in senders.items()} == {key: sorted(SENDERS) for key in KEYS}


async def _public(broker: Broker, topic: str) -> None:
    sender = await producer(await connect(broker.url), topic, reliable=True, partitions=PARTITIONS)
    for key in KEYS:
        await sender.send_with_key(b"public", {}, key)


async def _native(url: str, topic: str) -> None:
    async with pydanube.connect(url) as client, client.producer(topic) as sender:
        for key in KEYS:
            sender.send(b"client", key=key)
        await sender.send_many([b"client, many"] * len(KEYS), keys=KEYS)


def _command(url: str, topic: str) -> None:
    lines = b"".join(key.encode() + b"\tcommand\n" for key in KEYS)
    command = [sys.executable, "-m", "pydanube.cli.main", "--url", url, "produce", topic, "--key-separator", "\t"]
    run(command, input=lines, check=True, capture_output=True, timeout=60)


def test_every_face_refuses_a_key_that_is_too_long(broker: Broker, topic: str) -> None:
    """The broker itself, where no client of ours looks at it before."""
    url, key = broker.url.replace("http", "danube"), "k" * (KEY_BYTES_MAX + 1)
    with pydanube.sync.connect(url) as client:
        client.admin.create_topic(topic)
        with client.producer(topic) as sync, pytest.raises(KeyTooLong):
            sync.send(b"sync", key=key).result()

        async def public() -> None:
            async with channel(broker.target) as opened:
                made = await Producers(opened).CreateProducer(
                    api.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy=1)
                )
                sent = Producers(opened).SendMessage(message(topic, b"x", made.producer_id, routing_key=key))
                code, details = await refused(sent)
            assert code is StatusCode.INVALID_ARGUMENT
            assert str(KEY_BYTES_MAX) in details

        asyncio.run(public())
        command = [sys.executable, "-m", "pydanube.cli.main", "--url", url, "produce", topic, "-k", key, "--value", "x"]
        produced = run(command, capture_output=True, timeout=60)
        assert produced.returncode
        assert KeyTooLong.help.encode() in produced.stderr
        body = json.dumps({"messages": [{"key": key, "value": "REST"}]}).encode()
        address, kind = f"{broker.url}/api/v1/topics{topic}/messages", {"Content-Type": "application/json"}
        with pytest.raises(HTTPError) as rest:
            urlopen(Request(address, body, kind))
        with rest.value as answer:
            assert (answer.code, b"key_too_long" in answer.read()) == (413, True)
        with pytest.raises(KeyTooLong):
            Run(url, topic).write(0, rows(value=[b"Spark"], key=[key]))
        assert client.read_arrow(topic).num_rows == 0
