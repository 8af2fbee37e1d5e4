"""Schemas through the client: every method of `client.admin` about them."""

from __future__ import annotations

import asyncio

import pytest

import pydanube
from pydanube.base.errors import ArgumentInvalid, SchemaNotFound, SubjectNotFound
from pydanube.operations.schemas import SchemaReference
from pydanube.testing.broker import broker_thread

LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "line", "type": "Line"}]}


def test_a_subject_from_its_first_version_to_its_end() -> None:
    async def story(url: str) -> None:
        async with pydanube.connect(url) as client:
            admin = client.admin
            line = await admin.register_schema("line", LINE, type="avro", created_by="ada", tags=["core"])
            references = [SchemaReference("Line", "line", line.version)]
            order = await admin.register_schema("order", ORDER, type="avro", references=references)
            assert (await admin.check_schema("order", ORDER, type="avro", references=references)).compatible
            found = await admin.schema_by_id(order.schema_id, order.version)
            assert (found.subject, found.references) == ("order", references)
            assert (await admin.schema("line")).tags == ["core"]
            assert [each.subject for each in await admin.subjects()] == ["line", "order"]
            assert [each.subject for each in await admin.subjects("o")] == ["order"]
            assert [each.created_by for each in await admin.schema_versions("line")] == ["ada"]
            assert (await admin.set_schema_mode("line", "full")).mode == "full"
            assert (await admin.schema_mode("line")).own
            assert (await admin.schema_mode()).mode == "backward"
            assert await admin.delete_schema("order", dry_run=True) == [1]
            assert await admin.delete_schema("order") == [1]
            with pytest.raises(SubjectNotFound):
                await admin.schema("order")
            with pytest.raises(SchemaNotFound):
                await admin.schema_by_id(order.schema_id)
            with pytest.raises(ArgumentInvalid):
                await admin.register_schema("line", {"type": object()}, type="avro")

    with broker_thread() as url:
        asyncio.run(story(url))


def test_lists_longer_than_an_answer_are_complete() -> None:
    async def story(url: str) -> None:
        async with pydanube.connect(url) as client:
            names = [f"subject-{number:03}" for number in range(130)]
            for name in names:
                await client.admin.register_schema(name, type="string")
            assert [each.subject for each in await client.admin.subjects()] == names

    with broker_thread() as url:
        asyncio.run(story(url))
