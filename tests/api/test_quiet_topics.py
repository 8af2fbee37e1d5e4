"""Topics in which nothing happens: what time brings about in them comes in time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import pydanube
from pydanube.broker.serving import house
from pydanube.testing.broker import broker

PATIENCE_SECONDS = 20.0


@pytest.mark.parametrize("policy", ["ttl_seconds", "retention_seconds"])
def test_a_quiet_topic_with_a_policy_of_time_is_looked_at_every_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(house, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(house, "QUIET_TURNS", 10**9)  # nobody else is looked at

    async def main() -> None:
        async with broker(tmp_path) as danube, pydanube.connect(danube.url) as client:
            await client.admin.create_topic("/default/t", policies={policy: 1})
            await client.admin.create_subscription("/default/t", "s", start="earliest")
            async with client.producer("/default/t") as producer:
                await producer.send_many([b"1", b"2"])
            if policy == "retention_seconds":
                await client.admin.seek_subscription("/default/t", "s", "latest")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await gone(client):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    async def gone(client: pydanube.Client) -> bool:
        if policy == "ttl_seconds":
            return bool((await client.admin.describe_subscription("/default/t", "s"))["backlog"] == 0)
        return bool((await client.admin.describe_topic("/default/t"))["first"] == 2)

    asyncio.run(main())
