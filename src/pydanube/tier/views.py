"""Views of a segment's rows for numpy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pydanube.wire.arrow_views import Integers, spans


def row_bytes(rows: pa.RecordBatch) -> Integers:
    """The bytes of each row's key, payload and attributes, plus 8 for each attribute, which may be empty."""
    total: Integers = np.diff(spans(rows.column("key"))).astype(np.int64)
    total += np.diff(spans(rows.column("payload")))
    attributes = rows.column("attributes")
    if attributes.null_count < len(attributes):
        entries = spans(attributes)
        total += 8 * np.diff(entries)
        for texts in (attributes.keys, attributes.items):
            total += np.diff(spans(texts)[entries])
    return total
