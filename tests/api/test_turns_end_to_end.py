"""S1: a real broker process answers `/healthz` all the while that somebody sends it everything they can."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from api.broker_process import BrokerProcess
from api.hostile import Attack, Crowd, Probes
from api.hostile_inputs import BYTES, HTTP1, HTTP2, MARKS, NATIVE, got, much
from pydanube.wire.frames import PREFACE

SECONDS_EACH = 0.5
CONNECTIONS = 5_000
SLOWEST_SECONDS = 5.0  # of the wall, on a machine that does much else; what they are held up by is measured elsewhere


def test_a_real_broker_answers_probes_whatever_it_is_sent(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    address = asyncio.run(broker.start())
    try:
        probes = Probes(address)
        inputs = [*NATIVE.values(), *HTTP2.values(), *HTTP1.values()]
        random.Random(1).shuffle(inputs)
        for make in inputs[:12]:
            parts = make()
            Attack(address, parts, MARKS if parts[0].startswith(PREFACE) else ()).wait(SECONDS_EACH)
        probes.stop()
        assert probes.failed is None
        assert probes.answered
        assert probes.longest_seconds < SLOWEST_SECONDS
    finally:
        broker.end(9)


def test_a_real_broker_answers_probes_among_thousands_of_connections(tmp_path: Path) -> None:
    """Half of them never say what they want, and the others ask repeatedly."""
    broker = BrokerProcess(tmp_path)
    address = asyncio.run(broker.start())
    try:
        probes = Probes(address)
        silent = Crowd(address, CONNECTIONS // 2, b"")
        silent.send(b"GET /api", SECONDS_EACH)
        asking = Crowd(address, CONNECTIONS // 2, b"")
        asking.send(much(got("/api/v1/broker"), size=2 * BYTES // CONNECTIONS), 10 * SECONDS_EACH)
        probes.stop()
        assert probes.failed is None
        assert probes.answered
        assert probes.longest_seconds < SLOWEST_SECONDS
        silent.close()
        asking.close()
    finally:
        broker.end(9)
