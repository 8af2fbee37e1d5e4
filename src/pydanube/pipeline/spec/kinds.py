"""The registry of connectors: kinds of sinks and sources, by the key that names them in a declaration.

The built-in kinds are in a table, because reading the metadata of all installed packages takes some milliseconds in
every process of a query. Those of other packages are found by entry point, and imported when a declaration or a plan
names them, never before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from pydanube.base.errors import ConnectorConflict, ConnectorMissing, FlowInvalid
from pydanube.pipeline.spec.fields import Section

if TYPE_CHECKING:
    from pydanube.pipeline.spec.context import Preflight

NAME_CHARACTERS_SHOWN = 60


class Connector(ABC):
    """A source or sink as declared. A kind is a subclass, a frozen dataclass with plain values and no connection."""

    kind: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ()  # of a declaration, besides the one that names the kind
    bare: ClassVar[bool] = False  # whether the key that names the kind may stand alone, like YAML's `console:`

    @property
    @abstractmethod
    def label(self) -> str:
        """How messages name it, such as `topic /default/orders` or `delta:/data/orders`."""

    @property
    def packages(self) -> Mapping[str, str]:
        """Modules that must be installed for it, and what for."""
        return {}

    def preflight(self, asked: Preflight) -> None:  # noqa: B027  # few kinds have anything to ask
        """Raises an error before Spark starts if something is wrong, and adds lines about what was checked."""


Kind = TypeVar("Kind", bound=Connector)


class Kinds(Generic[Kind]):
    """`built_in` has them as `module:class`. `misplaced` complains about a key that only other kinds have."""

    def __init__(self, what: str, group: str, built_in: Mapping[str, str], misplaced: str) -> None:
        self._what, self._group, self._misplaced = what, group, misplaced
        self._built_in = {name: EntryPoint(name, value, group) for name, value in built_in.items()}

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._built_in, *sorted(self.installed())]))

    def keys(self) -> tuple[str, ...]:
        """The keys of the built-in kinds."""
        return _keys(self._load_built_in())

    def __getitem__(self, name: str) -> type[Kind]:
        """Raises `ConnectorMissing`, `ConnectorConflict`."""
        point = self._built_in.get(name)
        if point is None:
            self.check(name)
            points = self.installed().get(name)
            if points is None:
                raise ConnectorMissing(
                    f"{name[:NAME_CHARACTERS_SHOWN]!r} is not a kind of {self._what}; the kinds are "
                    f"{', '.join(self.names())}"
                )
            [point] = points
        try:
            found: type[Kind] = point.load()
        except Exception as error:  # a connector's module may raise anything
            raise ConnectorMissing(
                f"the {self._what} {point.name} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return found

    def check(self, name: str) -> None:
        """Raises `ConnectorConflict` if two packages have this kind, one of which may be this package."""
        built_in = self._built_in.get(name)
        points = [*([] if built_in is None else [built_in]), *self.installed().get(name, [])]
        if len(points) > 1:
            packages = " and ".join(each.dist.name if each.dist else "pydanube" for each in points)
            raise ConnectorConflict(f"{packages} both have a {self._what} {name}")

    def check_connector(self, found: Kind) -> None:
        """Raises `ConnectorConflict` if another package has a kind by any of the names that lead to this one."""
        names = [name for name, each in self._load_built_in().items() if each is type(found)]
        for name in names or [found.kind]:
            self.check(name)

    def installed(self) -> dict[str, list[EntryPoint]]:
        """The kinds of other packages, by name. Excludes entry points of this package itself."""
        found: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self._group):
            built_in = self._built_in.get(point.name)
            if built_in is None or built_in.value != point.value:
                found.setdefault(point.name, []).append(point)
        return found

    def choose(self, path: str, found: object, folder: str, common: Sequence[str] = ()) -> tuple[type[Kind], Section]:
        """The one kind that a declaration names. `common` are keys that every kind has.

        Raises `FlowInvalid`, `ConnectorMissing`, `ConnectorConflict`.
        """
        kinds = self._load_built_in()
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
        return kinds[kind], section

    def _load_built_in(self) -> dict[str, type[Kind]]:
        return {name: self[name] for name in self._built_in}


def _keys(kinds: Mapping[str, type[Connector]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for each in kinds.values() for key in each.keys))
