"""Every method with whatever a message can hold: each call gets a status, and none is the broker's own failure."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from grpc_face.rig import SECONDS, channel
from pydanube.api.grpc.messages import FILES, message_class, service
from pydanube.api.server import Server
from pydanube.broker.standalone import StandaloneSettings

TEXTS = [
    "",
    "/default/x",
    "/default/x-part-0",
    "/default/y",
    "default",
    "s",
    "c",
    "p",
    "/nowhere/x",
    "ä\0",
    "x" * 300,
    "1",
]
NUMBERS = [0, 1, 2, 3, 7, 99, 2**31 - 1]
LARGE = [*NUMBERS, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
CALLS = 1_500


def filled(random: Random, descriptor: Any, depth: int = 0) -> Any:
    message = message_class(descriptor.full_name)()
    for field in descriptor.fields:
        if random.random() < 0.2 or depth > 3 or (field.message_type and field.message_type.GetOptions().map_entry):
            continue
        values = [value(random, field, depth) for _ in range(random.choice((1, 2)) if field.is_repeated else 1)]
        if field.is_repeated:
            getattr(message, field.name).extend(values)
        elif field.message_type:
            getattr(message, field.name).CopyFrom(values[0])
        else:
            setattr(message, field.name, values[0])
    return message


def value(random: Random, field: Any, depth: int) -> Any:
    if field.message_type:
        return filled(random, field.message_type, depth + 1)
    if field.type == field.TYPE_STRING:
        return random.choice(TEXTS)
    if field.type == field.TYPE_BYTES:
        return random.randbytes(random.choice((0, 5)))
    if field.type == field.TYPE_BOOL:
        return random.random() < 0.5
    if field.type == field.TYPE_UINT64:
        return random.choice(LARGE)
    return random.choice(NUMBERS)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_message_makes_the_broker_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    random = Random(seed)
    methods = [
        method
        for file in FILES
        for each in file.service
        for method in service(f"{file.package}.{each.name}").methods
        if not method.client_streaming and not method.server_streaming
    ]
    seen: set[grpc.StatusCode] = set()
    details: list[str] = []

    async def call(opened: grpc.aio.Channel, gate: asyncio.Semaphore) -> None:
        method = random.choice(methods)
        body = filled(random, method.input_type).SerializeToString()
        if random.random() < 0.05:
            body = random.randbytes(len(body))
        path = f"/{method.containing_service.full_name}/{method.name}"
        async with gate:
            asked = opened.unary_unary(path, request_serializer=None, response_deserializer=None)
            try:
                await asked(body, timeout=SECONDS)
            except grpc.aio.AioRpcError as error:
                seen.add(error.code())
                details.append(error.details() or "")

    async def run() -> None:
        server = Server(StandaloneSettings(tmp_path, port=0))
        host, port = await server.start()
        gate = asyncio.Semaphore(20)
        async with channel(f"{host}:{port}") as opened:
            await asyncio.gather(*(call(opened, gate) for _ in range(CALLS)))
        await server.stop()

    gc.collect()  # what earlier tests have left may log that its loop is closed
    caplog.clear()
    asyncio.run(run())
    assert {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED} <= seen
    assert grpc.StatusCode.DEADLINE_EXCEEDED not in seen
    assert grpc.StatusCode.UNKNOWN not in seen
    assert not [each for each in details if "the broker failed" in each]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
