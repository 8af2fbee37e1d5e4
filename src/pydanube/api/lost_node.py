"""`danube storage forget-node`, on the directory of a broker that does not run."""

from __future__ import annotations

from pathlib import Path

from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemRandomness
from pydanube.broker.lost_node import forget_node
from pydanube.operations.storage import LostNode, LostTopic


async def forget(data_dir: Path, *, accept: bool) -> LostNode:
    """What is lost, by topic, with a storage node that is gone; with `accept`, the metadata forgets the node."""
    for_metadata, for_node = PosixDisk(data_dir / "metadata"), PosixDisk(data_dir / "node")
    try:
        node, topics = await forget_node(for_metadata, for_node, SystemRandomness(), accept=accept)
    finally:
        for_metadata.close()
        for_node.close()
    return LostNode(node, [LostTopic(*topic) for topic in topics], accept)
