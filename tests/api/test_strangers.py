"""What callers without a token, or without rights, cannot take or learn."""

from __future__ import annotations

import asyncio
from pathlib import Path

from api.door_rig import World
from api.http_client import Http
from api.test_security import SLOW, bound, run
from pydanube.operations.schemas import RegisterSchema
from pydanube.wire.http2.frames import PREFACE
from pydanube.wire.http2.grpc import framed
from wire.http2.peer import EMPTY_SETTINGS, data, headers


def test_an_id_does_not_tell_which_subjects_exist(tmp_path: Path) -> None:
    """A caller that may not see a subject gets the same answer for its ids as for ids that nothing has."""

    async def story(world: World) -> None:
        await world.system.carry_out(RegisterSchema("takeover-plans", "avro", '"string"'))
        low = await bound(world, "alice", "viewer", "namespace", "default")
        http = await Http.connect(world.server)
        for path in ("/schemas/ids/", "/api/v1/schema-by-id?schema_id="):
            known, unknown = [await http.ask("GET", path + id, authorization=f"Bearer {low}") for id in ("1", "999")]
            assert known.status == 403
            assert known.json == unknown.json
        await http.close()

    run(tmp_path, story, prepared=True)


def test_a_body_is_not_kept_for_a_caller_without_a_token(tmp_path: Path) -> None:
    """Otherwise its bodies, which never end, would take the room of all callers."""

    async def story(world: World) -> None:
        http = await Http.connect(world.server)
        head = "POST /api/v1/topics/default/orders/messages HTTP/1.1\r\nHost: danube\r\nContent-Length: 1000000\r\n\r\n"
        http.writer.write(head.encode() + bytes(100_000))
        assert (await http.reply()).status == 401
        await http.close()
        reader, writer = await asyncio.open_connection(*world.server.address)
        half = framed(bytes(1_000_000))[:10_000]
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/danube.ProducerService/SendMessage")]
        fields += [(b":authority", b"danube"), (b"content-type", b"application/grpc")]
        writer.write(PREFACE + EMPTY_SETTINGS + headers(1, fields, end=False) + data(1, half))
        received = b""
        while b"grpc-status\x0216" not in received:  # UNAUTHENTICATED
            more = await asyncio.wait_for(reader.read(65_536), SLOW)
            assert more
            received += more
        writer.close()

    run(tmp_path, story, prepared=True)
