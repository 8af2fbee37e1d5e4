"""Whether a definition may follow the versions that a subject already has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydanube.base.errors import SchemaTooComplex
from pydanube.base.limits import SCHEMA_BREAK_CHARACTERS_MAX, SCHEMA_BREAKS_MAX
from pydanube.schema.kinds import CompatibilityMode
from pydanube.schema.schema import Break, Schema


class Incompatibility(NamedTuple):
    version: int  # of the subject
    path: str
    reason: str

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{place}{self.reason} (version {self.version})"


def incompatibilities(
    mode: CompatibilityMode, new: Schema, older: Sequence[tuple[int, Schema]]
) -> list[Incompatibility]:
    """Every place where `new` breaks a promise to one of the older versions, which are in their order."""
    asked = older if mode.is_transitive else older[-1:]
    if mode is CompatibilityMode.NONE:
        return []
    found = [
        Incompatibility(version, _short(each.path), _short(each.reason))
        for version, schema in reversed(asked)
        for each in _breaks(mode, new, schema)
    ]
    if len(found) > SCHEMA_BREAKS_MAX:
        left = len(found) - SCHEMA_BREAKS_MAX + 1
        found[SCHEMA_BREAKS_MAX - 1 :] = [Incompatibility(found[-1].version, "", f"and {left} more places")]
    return found


def _short(text: str) -> str:
    most = SCHEMA_BREAK_CHARACTERS_MAX
    return text if len(text) <= most else f"{text[:most]}…"


def _breaks(mode: CompatibilityMode, new: Schema, old: Schema) -> list[Break]:
    if new.type is not old.type:
        return [Break("", f"the type is {new.type}, and was {old.type}")]
    found = list(new.breaks_replacing(old))
    try:
        if mode.is_backward:
            found += new.breaks_reading(old)
        if mode.is_forward:
            found += [
                Break(each.path, f"readers with the older schema: {each.reason}") for each in old.breaks_reading(new)
            ]
    except RecursionError:
        raise SchemaTooComplex("the types are inside each other too deep to be compared") from None
    return found
