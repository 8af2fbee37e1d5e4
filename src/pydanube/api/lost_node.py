"""`danube storage forget-node`, on the directory of a broker that does not run."""

from __future__ import annotations

from pathlib import Path

from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemRandomness
from pydanube.broker.lost_node import forget_node
from pydanube.wire.objects import Object


async def forget(data_dir: Path, *, accept: bool) -> Object:
    """What is lost, by topic, with a storage node that is gone; with `accept`, the metadata forgets the node."""
    for_metadata, for_node = PosixDisk(data_dir / "metadata"), PosixDisk(data_dir / "node")
    try:
        node, topics = await forget_node(for_metadata, for_node, SystemRandomness(), accept=accept)
    finally:
        for_metadata.close()
        for_node.close()
    return {"node": node, "topics": [topic._asdict() for topic in topics]}
