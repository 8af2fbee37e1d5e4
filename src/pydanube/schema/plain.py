"""The types without a definition: bytes, string and number."""

from __future__ import annotations

from collections.abc import Iterable

from pydanube.schema.kinds import SchemaType
from pydanube.schema.schema import Break, Fault, Schema

NUMBER_BYTES = (4, 8)  # of an int or float, and of a long or double


class BytesSchema(Schema):
    """Anything."""

    type = SchemaType.BYTES

    def breaks_reading(self, written: BytesSchema) -> list[Break]:
        return []

    def faults(self, payloads: Iterable[bytes]) -> list[Fault]:
        return []


class StringSchema(Schema):
    """Text in UTF-8."""

    type = SchemaType.STRING

    def breaks_reading(self, written: StringSchema) -> list[Break]:
        return []

    def faults(self, payloads: Iterable[bytes]) -> list[Fault]:
        found: list[Fault] = []
        for index, payload in enumerate(payloads):
            try:
                payload.decode("utf-8")
            except UnicodeDecodeError as error:
                found.append(Fault(index, "", f"byte {error.start} is not UTF-8"))
        return found


class NumberSchema(Schema):
    """A number of four or eight bytes."""

    type = SchemaType.NUMBER

    def breaks_reading(self, written: NumberSchema) -> list[Break]:
        return []

    def faults(self, payloads: Iterable[bytes]) -> list[Fault]:
        return [
            Fault(index, "", f"a number has 4 or 8 bytes, and this has {len(payload)}")
            for index, payload in enumerate(payloads)
            if len(payload) not in NUMBER_BYTES
        ]
