"""Rows of a segment as numpy sees them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pydanube.wire.arrow_views import Integers, spans


def row_bytes(rows: pa.RecordBatch) -> Integers:
    """Of every row, the bytes of its key, payload and attributes, with 8 for each attribute: it may be empty."""
    total: Integers = np.diff(spans(rows.column("key"))).astype(np.int64)
    total += np.diff(spans(rows.column("payload")))
    attributes = rows.column("attributes")
    if attributes.null_count < len(attributes):
        entries = spans(attributes)
        total += 8 * np.diff(entries)
        for texts in (attributes.keys, attributes.items):
            total += np.diff(spans(texts)[entries])
    return total
