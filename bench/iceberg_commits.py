"""What the first and later commits to an Iceberg table cost: `python bench/iceberg_commits.py [COMMITS] [--maintain]`.

It measures only the CPU of the driver; the catalog is SQLite and the warehouse a folder. With `--maintain`, commits
also merge small files, as `danube pipeline lakehouse` does.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from pydanube.pipeline.sinks.iceberg import IcebergSink
from pydanube.pipeline.targets.iceberg import expiry as iceberg_expiry
from pydanube.pipeline.targets.iceberg.target import IcebergTarget
from pydanube.pipeline.targets.mark import Mark

COMMITS, GROUPS, MILLISECONDS = 10_000, 20, 1000
ROWS = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "name": ["a", "b", "c"]})


def committed(target: IcebergTarget, number: int) -> float:
    """The CPU seconds of one commit with one file."""
    mark = Mark("bench", "query", "run", number, f'[{{"/default/orders":{{"0":{number}}}}}]')
    stager = target.open(mark, ROWS.schema, f"{number}-0-bench")
    stager.add(ROWS)
    part = stager.finish() or []
    began = time.process_time()
    target.commit(mark, ROWS.schema, [part], replace=False)
    return time.process_time() - began


def main() -> None:
    given = [each for each in sys.argv[1:] if each != "--maintain"]
    maintain = {"maintain": {"compact": True}} if len(given) < len(sys.argv) - 1 else {}
    commits = int(given[0]) if given else COMMITS
    iceberg_expiry.READERS_MS = 0  # a day of commits takes minutes here, so ten minutes for readers would be hours
    with tempfile.TemporaryDirectory() as root:
        catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}
        target = IcebergSink.target({"kind": "iceberg", "table": "bench.orders", **catalog, **maintain})
        target.prepare(ROWS.schema)
        size = max(1, commits // GROUPS)
        means = []
        for start in range(0, commits - size + 1, size):
            took = [committed(target, number) for number in range(start, start + size)]
            means.append(MILLISECONDS * sum(took) / size)
            print(f"commits {start:>6} to {start + size:>6}: {means[-1]:6.1f} ms of CPU each", flush=True)
        table = target.address.load()
        metadata = list(Path(root).rglob("metadata/*"))
        print(
            f"last against first: {means[-1] / means[0]:.2f}; {len(table.snapshots())} snapshots, "
            f"{len(metadata)} files of metadata with {sum(each.stat().st_size for each in metadata):,} bytes"
        )


if __name__ == "__main__":
    main()
