"""gRPC over TLS, by ALPN on the one port, and HTTP/1 beside it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import grpc
import pytest

from api.test_tls import broker
from certificates import Authority
from grpc_face.rig import Producers, api
from grpc_face.test_calls import made


def test_grpc_and_rest_share_a_port_that_speaks_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def run() -> None:
        async with broker(tmp_path, authority.sign()) as server:
            host, port = server.address
            credentials = grpc.ssl_channel_credentials(authority.file.read_bytes())
            async with grpc.aio.secure_channel(f"{host}:{port}", credentials) as opened:
                number = await made(opened, "/default/x")
                identity = api.MsgID(producer_id=number, topic_name="/default/x")
                message = api.StreamMessage(msg_id=identity, producer_name="p", payload=bytes(1 << 20))
                await Producers(opened).SendMessage(message)
                lookup = opened.unary_unary(
                    "/danube.Discovery/TopicLookup",
                    request_serializer=api.TopicLookupRequest.SerializeToString,
                    response_deserializer=api.TopicLookupResponse.FromString,
                )
                assert (
                    await lookup(api.TopicLookupRequest(topic="/default/x"))
                ).connect_url == f"https://{host}:{port}"
            context = ssl.create_default_context(cafile=authority.file)
            context.set_alpn_protocols(["h2", "http/1.1"])  # as curl does
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(run())


def test_a_client_without_tls_is_told_so(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def run() -> None:
        async with broker(tmp_path, authority.sign()) as server:
            host, port = server.address
            async with grpc.aio.insecure_channel(f"{host}:{port}") as opened:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await made(opened, "/default/x")
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(run())
