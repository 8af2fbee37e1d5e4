"""The sink of all targets, behind a checkpoint that outlives a power cut: synced before a batch writes anything."""

from __future__ import annotations

from pyspark.sql.types import StructType

from pydanube.pipeline.targets.sink import TablesBatchWriter, TablesSink, TablesStreamWriter
from pydanube.spark.durable import settle


class DurableTables(TablesSink):
    """Spark asks for a writer when it plans a batch, and has the batch's offsets in the checkpoint by then."""

    def writer(self, schema: StructType, overwrite: bool) -> TablesBatchWriter:
        settle(self.options.get("checkpointLocation"))
        return super().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TablesStreamWriter:
        settle(self.options.get("checkpointLocation"))
        return super().streamWriter(schema, overwrite)
