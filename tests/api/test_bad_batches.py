"""Batches whose checksums are right and whose columns are not: refused at publish, so that no consumer meets them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from struct import pack

import pytest

from api.frame_client import Client, close_all
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.errors import BatchInvalid
from pydanube.base.limits import ATTRIBUTES_CHECKED_BYTES_MAX, MIB
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import Batch, Codec, build
from pydanube.wire.columns import Column, ColumnKind
from pydanube.wire.commands import Error, Publish
from wire.batches import SAMPLES, forged, resealed

PAYLOADS = ColumnKind.PLAIN << 2 * Column.PAYLOAD
KEYS = ColumnKind.PLAIN << 2 * Column.KEY
TIMES = ColumnKind.PLAIN << 2 * Column.DELIVERY_TIME
DATA = b"hiho\0\0\0\0"
GOOD = pack("<iiii", 0, 2, 4, 0) + DATA
TEXT = "grün"


def offsets(*values: int) -> bytes:
    return pack("<iiii", *values, 0) + DATA


def spoilt(**columns: object) -> bytes:
    """With half a character in an attribute."""
    data = build([b"x"], publish_time=1, **columns).to_bytes()  # type: ignore[arg-type]
    return resealed(data.replace(TEXT.encode(), b"gr\xfcnn"))


LIES: dict[str, bytes] = {
    "offsets run backwards": forged(packed=offsets(0, 3, 2), count=2, columns=PAYLOADS),
    "offsets beyond the data": forged(packed=offsets(0, 2, 1 << 30), count=2, columns=PAYLOADS),
    "offsets below zero": forged(packed=offsets(0, -5, 4), count=2, columns=PAYLOADS),
    "more messages than there are": forged(packed=GOOD, count=100, columns=PAYLOADS),
    "bytes of no column": forged(packed=GOOD + bytes(8), count=2, columns=PAYLOADS),
    "keys beyond their data": forged(offsets(0, 1 << 20, 5), GOOD, count=2, columns=PAYLOADS | KEYS),
    "no keys where it says so": forged(b"", GOOD, count=2, columns=PAYLOADS | KEYS),
    "half of the delivery times": forged(bytes(8), GOOD, count=2, columns=PAYLOADS | TIMES),
    "attributes are no text": spoilt(attributes=[{"colour": TEXT}]),
    "no zstd frame": forged(packed=b"\xff" * 16, raw_bytes=24, count=2, columns=PAYLOADS, codec=Codec.ZSTD),
    "zstd of another size": resealed(
        (data := SAMPLES["zstd"].to_bytes())[:60] + pack("<I", SAMPLES["zstd"].raw_bytes + 8) + data[64:]
    ),
    "lz4 too short for so many": forged(packed=b"\xff" * 16, raw_bytes=24, count=9, columns=PAYLOADS, codec=Codec.LZ4),
    "zstd too short for so many": forged(
        packed=b"\x28\xb5\x2f\xfd" * 4, raw_bytes=24, count=9, columns=PAYLOADS, codec=Codec.ZSTD
    ),
}


@pytest.mark.parametrize("reliable", [True, False])
def test_a_batch_that_breaks_its_own_rules_is_refused_and_the_connection_goes_on(
    tmp_path: Path, reliable: bool
) -> None:
    async def run() -> None:
        server = Server(StandaloneSettings(tmp_path, port=0, node=NodeSettings(file_bytes=4 * MIB)))
        await server.start()
        try:
            client = await Client.connect(server.address)
            await client.ask("open_producer", channel=1, topic="/default/t", reliable=reliable)
            for name, data in LIES.items():
                client.send(Publish(1, 5, data))
                answer = await client.receive()
                assert isinstance(answer, Error), name
                assert (answer.code, answer.channel, answer.request) == ("batch_invalid", 1, 5), name
            published = await client.publish(1, b"good")
            assert published.base_offset == (0 if reliable else -1)
            published = await client.publish(1, b"long enough to shrink" * 9, codec=Codec.ZSTD)
            assert published.base_offset == (1 if reliable else -1)
        finally:
            await close_all()
            await server.stop()

    asyncio.run(run())


@pytest.mark.parametrize("name", SAMPLES)
def test_a_good_batch_passes(name: str) -> None:
    Batch.parse(SAMPLES[name].to_bytes()).check_published()


def test_attributes_that_would_take_long_are_left_to_their_readers() -> None:
    long = Batch.parse(spoilt(attributes=[{TEXT: "x" * ATTRIBUTES_CHECKED_BYTES_MAX}]))
    long.check_published()
    with pytest.raises(BatchInvalid):
        long.check()
    short = Batch.parse(spoilt(attributes=[{TEXT: "x" * (ATTRIBUTES_CHECKED_BYTES_MAX - 100)}]))
    with pytest.raises(BatchInvalid):
        short.check_published()


def test_nothing_is_unpacked_at_publish() -> None:
    batch = Batch.parse(SAMPLES["zstd"].to_bytes())
    batch.check_published()
    assert batch._packed is None
