"""What of a file must stay as it is while its checkpoint lasts, for else results would be wrong. Pure.

Spark refuses some of it with words of its own, and does not notice the rest: it would put sums of one window into those
of another. SQL that aggregates is Spark's alone to look at.
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
    """By key of the file, as JSON has it."""
    return {
        "source": flow.source.kind,
        "transforms": [_remembered(each) for each in flow.transforms if isinstance(each, Aggregate | Deduplicate)],
        "output_mode": flow.output_mode,
        "dead_letters": flow.dead_letters is not None and bool(flow.transforms),
    }


def _remembered(step: Step) -> list[Any]:
    """What its state is of; columns may get other names."""
    if isinstance(step, Deduplicate):
        return ["deduplicate", *sorted(step.columns)]
    assert isinstance(step, Aggregate)
    times = [None if each is None else int(each) for each in (step.window, step.slide)]
    return ["aggregate", *times, step.on, list(step.by), [" ".join(text.split()) for text in step.values.values()]]
