"""Whether a definition may be registered: pure, and slow for large definitions, so it runs off the event loop."""

from __future__ import annotations

from collections.abc import Sequence

from pydanube.schema.compatibility import Incompatibility, incompatibilities
from pydanube.schema.definition import Source
from pydanube.schema.kinds import CompatibilityMode
from pydanube.schema.parsing import parse


def judge(source: Source, mode: CompatibilityMode, older: Sequence[tuple[int, Source]]) -> list[Incompatibility]:
    """Every place where the definition breaks a promise to older versions. Raises if it is not valid itself."""
    new = parse(source)
    asked = older if mode.is_transitive else older[-1:]
    if mode is CompatibilityMode.NONE:
        return []
    return incompatibilities(mode, new, [(version, parse(each)) for version, each in asked])
