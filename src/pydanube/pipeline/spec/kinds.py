"""The registry of connectors: kinds of sinks and sources, by the key that names them in a declaration.

The kinds of this project are in a table, so they are found without installed metadata. Those of other packages are
found by entry point, and imported when a declaration or a plan names them, never before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

from pydanube.base.errors import ConnectorMissing, FlowInvalid
from pydanube.pipeline.spec.fields import Section

NAME_CHARACTERS_SHOWN = 60


class Connector(Protocol):
    keys: ClassVar[tuple[str, ...]]  # of a declaration, besides the one that names the kind
    bare: ClassVar[bool]  # whether nothing need follow the key that names the kind, as in YAML's `console:`


Kind = TypeVar("Kind", bound=Connector)


class Chosen(NamedTuple, Generic[Kind]):
    """The one kind that a declaration names."""

    connector: type[Kind]
    section: Section


class Kinds(Generic[Kind]):
    """`own` are the kinds of this project, as `module:class`. `misplaced` complains about a key of other kinds."""

    def __init__(self, what: str, group: str, own: Mapping[str, str], misplaced: str) -> None:
        self._what, self._group, self._own, self._misplaced = what, group, own, misplaced

    def names(self) -> tuple[str, ...]:
        return (*self._own, *sorted(self._installed().keys() - self._own.keys()))

    def keys(self) -> tuple[str, ...]:
        """The keys of this project's kinds."""
        return _keys(self._load_own())

    def __getitem__(self, name: str) -> type[Kind]:
        """Raises `ConnectorMissing`."""
        if name in self._own:
            return self._load(EntryPoint(name, self._own[name], self._group))
        point = self._installed().get(name)
        if point is None:
            raise ConnectorMissing(
                f"{name[:NAME_CHARACTERS_SHOWN]!r} is not a kind of {self._what}; the kinds are "
                f"{', '.join(self.names())}"
            )
        return self._load(point)

    def choose(self, path: str, found: object, folder: str, common: Sequence[str] = ()) -> Chosen[Kind]:
        """`common` are keys that every kind has. Raises `FlowInvalid`, `ConnectorMissing`."""
        kinds = self._load_own()
        names: tuple[str, ...] = tuple(kinds)
        if isinstance(found, Mapping) and not {*names, *_keys(kinds), *common}.issuperset(found):
            names = self.names()
            kinds |= {name: self[name] for name in names if name in found and name not in kinds}
        if isinstance(found, Mapping):
            bare = {name for name, each in kinds.items() if each.bare}
            found = {key: {} if value is None and key in bare else value for key, value in found.items()}
        section = Section(path, found, (*names, *_keys(kinds), *common), folder)
        chosen = [name for name in names if name in section]
        if len(chosen) != 1:
            has = "both " + " and ".join(chosen) if chosen else "none"
            raise FlowInvalid(f"{path}: must have one of {', '.join(self.names())}; it has {has}")
        [kind] = chosen
        for name in section:
            if name not in (kind, *kinds[kind].keys, *common):
                others = " and ".join(each for each, connector in kinds.items() if name in connector.keys)
                raise section.wrong(name, self._misplaced.format(kind=kind, others=others))
        return Chosen(kinds[kind], section)

    def _load_own(self) -> dict[str, type[Kind]]:
        return {name: self[name] for name in self._own}

    def _installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self._group)}

    def _load(self, point: EntryPoint) -> type[Kind]:
        try:
            found: type[Kind] = point.load()
        except Exception as error:  # whatever somebody's module raises
            raise ConnectorMissing(
                f"the {self._what} {point.name} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return found


def _keys(kinds: Mapping[str, type[Connector]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for each in kinds.values() for key in each.keys))
