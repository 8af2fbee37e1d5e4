"""A schema in Avro. Payloads are single values in the binary encoding, without a header."""

from __future__ import annotations

from collections.abc import Iterable

from pydanube.schema.avro.checking import Checks
from pydanube.schema.avro.comparing import compare
from pydanube.schema.avro.parsing import AvroParser
from pydanube.schema.definition import Source, sources_of
from pydanube.schema.kinds import SchemaType
from pydanube.schema.schema import Break, Fault, Schema
from pydanube.schema.texts import read_json


class AvroSchema(Schema):
    type = SchemaType.AVRO

    def __init__(self, source: Source) -> None:
        parser = AvroParser()
        for _, each in sources_of(source):
            parser.parse(read_json(each.text))
        self.root = parser.parse(read_json(source.text))

    def breaks_reading(self, written: AvroSchema) -> list[Break]:
        return compare(self.root, written.root)

    def faults(self, payloads: Iterable[bytes]) -> list[Fault]:
        fault_of = Checks(self.root).fault  # each call has its own, because they count while they check
        found = ((index, fault_of(payload)) for index, payload in enumerate(payloads))
        return [Fault(index, *fault) for index, fault in found if fault is not None]
