"""The documents of one JSON Schema: its own and those that it refers to, and what a `$ref` means in each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import unquote, urljoin

from pydanube.base.errors import SchemaInvalid, SchemaTooComplex
from pydanube.base.limits import SCHEMA_EXPANDED_MAX
from pydanube.schema.jsonschema.merging import merged, same
from pydanube.schema.texts import write_json

Value: TypeAlias = dict[str, Any] | bool
DRAFT_7 = "http://json-schema.org/draft-07/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
_LISTS = ("allOf", "anyOf", "oneOf")  # of schemas for the same value
_SINGLE = ("not", "if", "then", "else")
_INDEX = re.compile("[0-9]{1,9}")  # of a list
_DATA = ("const", "enum", "default", "examples")  # a `$ref` in them is not one


class Node:
    """A schema within its document. There is one node for each, so that nodes can be told apart by identity."""

    __slots__ = ("document", "value")

    def __init__(self, document: Document, value: Value) -> None:
        self.document = document
        self.value = value

    def node(self, value: Value) -> Node:
        """A schema inside this one."""
        return self.document.node(value)


class Document:
    """One definition. `others` are the documents that it refers to, by name."""

    def __init__(self, value: Value, others: dict[str, Document]) -> None:
        self.value = value
        self.draft_7 = _is_draft_7(value)
        self._others = others
        self._nodes: dict[int, Node] = {}
        self._anchors: dict[str, Value] = {}
        self._flat: dict[int, Value] = {}
        self._chosen: dict[tuple[int, str, int], dict[str, Any]] = {}
        self._listed: dict[int, dict[str, Any]] = {}
        self._kept: list[Any] = []  # so that no other value gets the identity of one of them
        self._always, self._never = Node(self, True), Node(self, False)
        identity = value.get("$id", "") if isinstance(value, dict) else ""
        self._base = identity.rstrip("#") if isinstance(identity, str) else ""
        for each in _inside(value):
            if isinstance(name := each.get("$anchor"), str):
                self._anchors[name] = each

    def node(self, value: Value) -> Node:
        if isinstance(value, bool):
            return self._always if value else self._never
        key = id(value)
        if key not in self._nodes:
            self._nodes[key] = Node(self, value)
        return self._nodes[key]

    def find(self, reference: str) -> Node | None:
        """The schema that a `$ref` means; None if it is nested too cleverly for this, with a `$id` of its own."""
        name, _, fragment = reference.partition("#")
        if not name or name == self._base:
            return self._at(unquote(fragment))
        other = self._others.get(name) or self._others.get(self._joined(name))
        return other._at(unquote(fragment)) if other is not None else None

    def _joined(self, name: str) -> str:
        try:
            return urljoin(self._base, name)
        except ValueError:
            return name  # the library refuses it later, with a reason

    def flat(self, value: Value) -> Value:
        """The schema with what it refers to and all of its `allOf` as one: it allows the same, or more."""
        if isinstance(value, bool):
            return {} if value else False
        key = id(value)
        if key not in self._flat:
            self._kept.append(value)
            self._flat[key] = self._flattened(value)
        return self._flat[key]

    def chosen(self, value: dict[str, Any], keyword: str, index: int) -> Node:
        """The schema with one of its alternatives in the place of all."""
        key = (id(value), keyword, index)
        if key not in self._chosen:
            self._kept.append(value)
            rest = {name: each for name, each in value.items() if name != keyword}
            self._chosen[key] = {**rest, "allOf": [value[keyword][index]]}
        return self.node(self._chosen[key])

    def _flattened(self, value: dict[str, Any]) -> Value:
        parts = list(value.get("allOf", ()))
        rest = {name: each for name, each in value.items() if name not in ("allOf", "$ref")}
        reference = value.get("$ref")
        if isinstance(reference, str) and (found := self.find(reference)) is not None:
            if found.document is self or "$ref" not in write_json(found.value):
                parts.append(found.value)
        elif reference is not None:
            rest["$ref"] = reference
        if not parts:
            return value if reference is None else rest
        for each in parts:
            part = self.flat(each)
            if isinstance(part, bool):
                return False
            rest = merged(rest, part)
        return rest

    def _at(self, fragment: str) -> Node | None:
        if not fragment.startswith("/"):
            found = self.value if not fragment else self._anchors.get(fragment)
            return None if found is None else self.node(found)
        value: Any = self.value
        for step in fragment[1:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and step in value:
                value = value[step]
            elif isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
                value = value[int(step)]
            else:
                return None
        return self.node(value) if isinstance(value, dict | bool) else None

    @cached_property
    def text(self) -> str:
        """What this document and those that it refers to say."""
        return write_json([self.value, {name: each.value for name, each in self._others.items()}])

    def listed(self, value: dict[str, Any] | list[Any]) -> Node:
        """The schema of exactly this value, so that it can be compared part by part."""
        key = id(value)
        if key not in self._listed:
            self._kept.append(value)
            self._listed[key] = _exactly(value)
        return self.node(self._listed[key])

    def scalars(self, value: dict[str, Any]) -> Node:
        """The schema with only those of its listed values that have no parts."""
        return self._derived(
            value,
            "enum",
            lambda: {**value, "enum": [each for each in value["enum"] if not isinstance(each, dict | list)]},
        )

    def without(self, value: dict[str, Any], keyword: str) -> Node:
        """The schema without a keyword."""
        return self._derived(value, keyword, lambda: {name: each for name, each in value.items() if name != keyword})

    def _derived(self, value: dict[str, Any], keyword: str, make: Callable[[], dict[str, Any]]) -> Node:
        key = (id(value), keyword, -1)
        if key not in self._chosen:
            self._kept.append(value)
            self._chosen[key] = make()
        return self.node(self._chosen[key])

    def referred(self, known: set[int]) -> Iterator[dict[str, Any]]:
        """The schemas that a `$ref` in this document means, each with the draft by which it is read, without those that
        are known by now.

        They can be anywhere, also where no one else takes them for schemas.
        """
        for each in _inside(self.value):
            reference = each.get("$ref")
            found = self.find(reference) if isinstance(reference, str) else None
            if found is not None and isinstance(found.value, dict) and id(found) not in known:
                known.add(id(found))
                yield {**found.value, "$schema": f"{DRAFT_7}#" if found.document.draft_7 else DRAFT_2020}


def _exactly(value: dict[str, Any] | list[Any]) -> dict[str, Any]:
    if isinstance(value, list):
        bounds = {"minItems": len(value), "maxItems": len(value)}
        return {"type": "array", "prefixItems": [{"const": each} for each in value], "items": False, **bounds}
    properties = {name: {"const": each} for name, each in value.items()}
    return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}


def alike(reader: Node, writer: Node, keyword: str, read: Any, wrote: Any) -> bool:
    """Whether a keyword says the same in both documents, also by what it refers to."""
    if not same(read, wrote):
        return False
    refers = keyword in ("$ref", "$dynamicRef") or any(each in write_json(read) for each in ('"$ref"', '"$dynamicRef"'))
    return not refers or reader.document.text == writer.document.text


def check_expansion(document: Document) -> None:
    """Refuses a schema that applies very many schemas to one value, or itself, because each payload would be checked
    against all of them."""
    counts: dict[int, int] = {}

    def count(node: Node) -> int:
        key = id(node)
        if key in counts:
            if not counts[key]:
                raise SchemaInvalid("a schema refers to itself for the same value")
            return counts[key]
        counts[key] = 0
        total = 1 + sum(map(count, _same_value(node)))
        if total > SCHEMA_EXPANDED_MAX:
            raise SchemaTooComplex(f"more than {SCHEMA_EXPANDED_MAX:,} schemas apply to one value")
        counts[key] = total
        return total

    try:
        for each in _inside(document.value):
            count(document.node(each))
    except RecursionError:
        raise SchemaTooComplex("schemas refer to each other in too long a line") from None


def _same_value(node: Node) -> Iterator[Node]:
    """The schemas that apply to the same value as this one."""
    value = node.value
    if isinstance(value, bool):
        return
    if isinstance(reference := value.get("$ref"), str) and (found := node.document.find(reference)):
        yield found
    schemas = [each for name in _LISTS if isinstance(some := value.get(name), list) for each in some]
    schemas += [value[name] for name in _SINGLE if name in value]
    for name in ("dependentSchemas", "dependencies"):
        if isinstance(some := value.get(name), dict):
            schemas += some.values()
    yield from (node.node(each) for each in schemas if isinstance(each, dict | bool))


def _inside(value: Any) -> Iterator[dict[str, Any]]:
    """All objects of a definition that may be schemas."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += [inner for name, inner in each.items() if name not in _DATA]
        elif isinstance(each, list):
            waiting += each


def _is_draft_7(value: Value) -> bool:
    draft = value.get("$schema", DRAFT_2020) if isinstance(value, dict) else DRAFT_2020
    draft = draft.rstrip("#") if isinstance(draft, str) else ""
    if draft not in (DRAFT_7, DRAFT_2020):
        raise SchemaInvalid(f"$schema must be {DRAFT_2020} or {DRAFT_7}#")
    return draft == DRAFT_7
