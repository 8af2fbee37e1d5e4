"""The parts of a file that must not change while its checkpoint is in use, because results would be wrong. Pure.

Spark refuses some of these changes with errors of its own, and does not notice others: it would add the sums of one
window to those of another. Aggregates in SQL are checked by Spark alone.
"""

from __future__ import annotations

from typing import Any

from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.steps import Aggregate, Deduplicate, Step

REASONS = {
    "source": "a position in one kind of source means nothing in another",
    "transforms": "the state it holds belongs to other windows, groups or values",
    "output_mode": "open windows would never be written, or be written twice",
    "dead_letters": "with transforms, late rows are read by a separate scan, which the checkpoint does not include",
}


def fixed(flow: Flow) -> dict[str, Any]:
    """These parts by key of the file, as JSON."""
    return {
        "source": flow.source.kind,
        "transforms": [_remembered(each) for each in flow.transforms if isinstance(each, Aggregate | Deduplicate)],
        "output_mode": flow.output_mode,
        "dead_letters": flow.dead_letters is not None and bool(flow.transforms),
    }


def _remembered(step: Step) -> list[Any]:
    """What its state depends on. Columns may be renamed."""
    if isinstance(step, Deduplicate):
        return ["deduplicate", *sorted(step.columns)]
    assert isinstance(step, Aggregate)
    times = [None if each is None else int(each) for each in (step.window, step.slide)]
    return ["aggregate", *times, step.on, list(step.by), [" ".join(text.split()) for text in step.values.values()]]
