"""What a snapshot changes for those who watched the keys before it."""

from __future__ import annotations

from collections.abc import Sequence

from pydanube.metadata.snapshot import Row
from pydanube.metadata.state import Changed, MetadataState


def differences(before: MetadataState, revision: int, rows: Sequence[Row]) -> list[Changed]:
    """The last change of every key that is not as it was, in the order of their revisions. When a key was deleted is
    no longer known, so its revision is that of the snapshot."""
    changed = [
        Changed(entry.version, key, entry)
        for key, entry, _ in rows
        if (known := before.get(key)) is None or known.version != entry.version
    ]
    changed.sort(key=lambda change: change.revision)
    present = {key for key, _, _ in rows}
    changed += [Changed(revision, key, None) for key, _ in before.scan("") if key not in present]
    return changed
