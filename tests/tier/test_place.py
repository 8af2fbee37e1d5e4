"""The whole way for real: processes of their own, opendal, and a folder of the local disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pydanube.base.errors import ObjectMissing
from pydanube.base.limits import MIB
from pydanube.stream.segments import segment_key
from pydanube.tier.process import SegmentProcesses
from tier.rows_world import STREAM, full, messages, plan_of, simple
from tier.test_direct import flow, read_all

pytest.importorskip("opendal")


@pytest.mark.parametrize("scheme", ["fs", "memory"])
def test_segments_are_written_merged_read_and_removed(tmp_path: Path, scheme: str) -> None:
    async def work() -> None:
        segments = SegmentProcesses(scheme, {"root": str(tmp_path)} if scheme == "fs" else {}, "here")
        try:
            parts = [full(), simple(5000, first=20, per_batch=1000)]
            sources = []
            for part in parts:
                key = segment_key(STREAM, plan_of(part))
                sources.append((key, await segments.write(key, plan_of(part), STREAM, flow(part))))
            everything = [batch for part in parts for batch in part]
            merged = await segments.merge("7/12/_segments/all", plan_of(everything), STREAM, sources)
            await segments.verify("7/12/_segments/all", merged)
            found = await read_all(segments, "7/12/_segments/all", merged, MIB)  # type: ignore[arg-type]  # the port
            assert messages(found) == messages(everything)
            keys = await segments.list("7/12/_segments/")
            assert len(keys) == 3
            for key in keys:
                await segments.delete(key)
            assert await segments.list("7/12/_segments/") == []
            with pytest.raises(ObjectMissing):
                await segments.load(keys[0])
        finally:
            await segments.close()

    asyncio.run(work())
