"""A JSON Schema. Payloads are JSON in UTF-8. The library jsonschema-rs compiles and applies it: without the network,
and with regular expressions whose time is linear."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import msgspec

from pydanube.base.errors import SchemaInvalid
from pydanube.base.limits import SCHEMA_REGEX_BYTES_MAX
from pydanube.schema.definition import Source, sources_of
from pydanube.schema.jsonschema.comparing import compare
from pydanube.schema.jsonschema.documents import Document, check_expansion
from pydanube.schema.kinds import SchemaType
from pydanube.schema.schema import Break, Fault, Schema
from pydanube.schema.texts import read_json

REASON_CHARACTERS_MAX = 200  # the library quotes the value
_BASE = "json-schema:///"  # what the library resolves names against


class JsonSchema(Schema):
    type = SchemaType.JSON_SCHEMA

    def __init__(self, source: Source) -> None:
        self._others: dict[str, Document] = {}
        for name, each in sources_of(source):
            self._others[name] = self._document(each.text)
        self.root = self._document(source.text)
        for document in (*self._others.values(), self.root):
            check_expansion(document)
        self._validator = self._compile()

    def _document(self, text: str) -> Document:
        value = read_json(text)
        if not isinstance(value, dict | bool):
            raise SchemaInvalid("a JSON Schema is an object, true or false")
        return Document(value, self._others)

    def _compile(self) -> Any:
        import jsonschema_rs

        make = jsonschema_rs.Draft7Validator if self.root.draft_7 else jsonschema_rs.Draft202012Validator
        regex = jsonschema_rs.RegexOptions(SCHEMA_REGEX_BYTES_MAX, SCHEMA_REGEX_BYTES_MAX)
        known: set[int] = set()
        try:
            resources = [(name, each.value) for name, each in self._others.items()]
            registry = jsonschema_rs.Registry(resources) if resources else None
            for document in (*self._others.values(), self.root):
                jsonschema_rs.meta.validate(document.value)
                for each in document.referred(known):
                    jsonschema_rs.meta.validate(each)
            return make(self.root.value, registry=registry, pattern_options=regex, offline=True)
        except jsonschema_rs.ValidationError as error:
            raise SchemaInvalid(str(Break(place(error.instance_path), _reason(error.message)))) from None
        except (jsonschema_rs.ReferencingError, ValueError) as error:
            raise SchemaInvalid(_reason(str(error))) from None

    def breaks_reading(self, written: JsonSchema) -> list[Break]:
        return compare(self.root, written.root)

    def faults(self, payloads: Iterable[bytes]) -> list[Fault]:
        is_valid, decode = self._validator.is_valid, self._decode
        found: list[Fault] = []
        for index, payload in enumerate(payloads):
            try:
                value = decode(payload)
                if is_valid(value):
                    continue
                error = next(iter(self._validator.iter_errors(value)))
                found.append(Fault(index, place(error.instance_path), _reason(error.message)))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as problem:
                found.append(Fault(index, "", _reason(f"the payload is not valid JSON: {problem}")))
        return found

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        return msgspec.json.Decoder().decode


def place(path: Iterable[str | int]) -> str:
    """`items[2].price` of a path in JSON."""
    found = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return found.removeprefix(".")


def _reason(message: str) -> str:
    line = message.partition("\n")[0]
    return line if len(line) <= REASON_CHARACTERS_MAX else f"{line[:REASON_CHARACTERS_MAX]}…"
