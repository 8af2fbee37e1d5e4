"""The registry: ids, versions and modes, also when several brokers register at once, and when the power goes midway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from broker.door_world import DoorWorld, caller
from pydanube.access.principals import Principal
from pydanube.access.rights import Action, Resource
from pydanube.base.errors import (
    LimitReached,
    NotAllowed,
    SchemaIncompatible,
    SchemaInUse,
    SchemaInvalid,
    SchemaModeInvalid,
    SchemaNotFound,
    SubjectInvalid,
    SubjectNotFound,
)
from pydanube.broker.door.asking import Asking
from pydanube.broker.door.door import Door
from pydanube.broker.schemas.registry import Definition, Registry
from pydanube.operations.schemas import (
    CheckSchema,
    DeleteSchema,
    FindSchema,
    GetSchema,
    GetSchemaById,
    GetSchemaMode,
    ListSchemaVersions,
    ListSubjects,
    RegisterSchema,
    SchemaReference,
    SetSchemaMode,
)
from pydanube.schema.kinds import SchemaType


@pytest.fixture
def world() -> Iterator[DoorWorld]:
    made = DoorWorld()
    yield made
    made.end()


def record(*names: str, default: bool = True, name: str = "Order") -> str:
    fields = [{"name": each, "type": "long", **({"default": 0} if default else {})} for each in names]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def avro(subject: str, *names: str, **more: Any) -> RegisterSchema:
    return RegisterSchema(subject, "avro", record(*names, **more))


def test_versions_and_ids_are_counted_from_1(world: DoorWorld) -> None:
    async def story(door: Door) -> None:
        session = caller(door)
        first = await session.carry_out(avro("orders", "a"))
        second = await session.carry_out(avro("orders", "a", "b"))
        other = await session.carry_out(avro("bills", "a"))
        assert [(each.schema_id, each.version, each.definition_id) for each in (first, second, other)] == [
            (1, 1, 1),
            (1, 2, 2),
            (2, 1, 3),
        ]
        again = await session.carry_out(RegisterSchema("orders", "AVRO", f" {record('a')}"))
        assert (again.version, again.definition_id, again.is_new) == (1, 1, False)
        assert again.fingerprint == first.fingerprint
        found = await session.carry_out(GetSchema("orders"))
        assert (found.version, found.definition, found.mode) == (2, record("a", "b"), "backward")
        assert (await session.carry_out(GetSchemaById(1, 1))).definition == record("a")
        assert (await session.carry_out(FindSchema("orders", "avro", record("a")))).version == 1

    async def after_a_restart(door: Door) -> None:
        session = caller(door)
        assert (await session.carry_out(GetSchema("orders"))).version == 2
        assert (await session.carry_out(avro("more", "a"))).schema_id == 3

    world.run(story)
    world.run(after_a_restart)


def test_everything_about_a_version_is_kept(world: DoorWorld) -> None:
    async def story(door: Door) -> None:
        session = caller(door)
        await session.carry_out(
            RegisterSchema("orders", "json", '{"type": "object"}', [], "of the shop", "ada", ["pii", "core"])
        )
        found = await session.carry_out(GetSchema("orders", 1))
        assert (found.type, found.description, found.created_by, found.tags) == (
            "json_schema",
            "of the shop",
            "ada",
            ["pii", "core"],
        )
        assert found.created_at > 0
        [listed] = (await session.carry_out(ListSubjects())).subjects
        assert (listed.subject, listed.type, listed.latest_version, listed.tags) == (
            "orders",
            "json_schema",
            1,
            ["pii", "core"],
        )

    world.run(story)


@pytest.mark.parametrize("kind", ["bytes", "string", "int64"])
def test_types_without_a_definition_have_one_version(world: DoorWorld, kind: str) -> None:
    async def story(door: Door) -> None:
        session = caller(door)
        first = await session.carry_out(RegisterSchema("raw", kind, "whatever"))
        assert (await session.carry_out(RegisterSchema("raw", kind))).version == first.version == 1
        assert first.fingerprint == {"int64": "number"}.get(kind, kind)
        with pytest.raises(SchemaIncompatible, match="the type is avro, and was"):
            await session.carry_out(avro("raw", "a"))

    world.run(story)


def test_what_breaks_a_promise_is_refused_with_every_place(world: DoorWorld) -> None:
    async def story(door: Door) -> None:
        session = caller(door)
        await session.carry_out(avro("orders", "a"))
        broken = RegisterSchema("orders", "avro", record("a", "b", "c", default=False))
        with pytest.raises(SchemaIncompatible) as refused:
            await session.carry_out(broken)
        assert "b: the field has no default, and was not written (version 1)" in str(refused.value)
        assert "c: the field has no default, and was not written (version 1)" in str(refused.value)
        found = await session.carry_out(CheckSchema("orders", "avro", broken.definition))
        assert [each.path for each in found.breaks] == ["b", "c"]
        assert not found.compatible
        assert (await session.carry_out(CheckSchema("orders", "avro", broken.definition, mode="forward"))).compatible
        await session.carry_out(SetSchemaMode("orders", "NONE"))
        assert (await session.carry_out(broken)).version == 2
        with pytest.raises(SchemaInvalid):
            await session.carry_out(RegisterSchema("orders", "avro", '{"type": "record"}'))
        assert (await session.carry_out(ListSchemaVersions("orders"))).versions[-1].version == 2

    world.run(story)


def test_a_check_can_be_about_one_version(world: DoorWorld) -> None:
    async def story(door: Door) -> None:
        session = caller(door)
        await session.carry_out(avro("orders", "a"))
        await session.carry_out(avro("orders", "a", "b"))
        definition = record("a", "b", default=False)
        assert (await session.carry_out(CheckSchema("orders", "avro", definition))).compatible
        found = await session.carry_out(CheckSchema("orders", "avro", definition, version=1))
        assert [(each.version, each.path) for each in found.breaks] == [(1, "b")]

    world.run(story)


def test_modes_are_inherited_set_and_removed(world: DoorWorld) -> None:
    async def story(door: Door) -> None:
        session = caller(door)
        await session.carry_out(avro("orders", "a"))

        async def mode(subject: str | None = None) -> tuple[str, bool]:
            found = await session.carry_out(GetSchemaMode(subject))
            return found.mode, found.own

        assert (await mode(), await mode("orders")) == (("backward", False), ("backward", False))
        await session.carry_out(SetSchemaMode(None, "full"))
        assert (await mode(), await mode("orders")) == (("full", True), ("full", False))
        await session.carry_out(SetSchemaMode("orders", "forward_transitive"))
        assert await mode("orders") == ("forward_transitive", True)
        await session.carry_out(SetSchemaMode("orders", None))
        await session.carry_out(SetSchemaMode(None, None))
        assert (await mode(), await mode("orders")) == (("backward", False), ("backward", False))
        with pytest.raises(SchemaModeInvalid):
            await session.carry_out(SetSchemaMode("orders", "sideways"))
        with pytest.raises(SubjectNotFound):
            await session.carry_out(SetSchemaMode("missing", "full"))

    world.run(story)


def test_deleted_versions_and_ids_are_never_used_again(world: DoorWorld) -> None:
    async def story(door: Door) -> None:
        session = caller(door)
        for names in ("a", "ab", "abc"):
            await session.carry_out(avro("orders", *names))
        assert (await session.carry_out(DeleteSchema("orders", 3, dry_run=True))).versions == [3]
        assert (await session.carry_out(DeleteSchema("orders", 3))).versions == [3]
        assert (await session.carry_out(GetSchema("orders"))).version == 2
        again = await session.carry_out(avro("orders", *"abc"))
        assert (again.schema_id, again.version, again.definition_id) == (1, 4, 4)
        with pytest.raises(SchemaNotFound):
            await session.carry_out(GetSchema("orders", 3))
        assert (await session.carry_out(DeleteSchema("orders"))).versions == [1, 2, 4]
        with pytest.raises(SubjectNotFound):
            await session.carry_out(GetSchema("orders"))
        with pytest.raises(SchemaNotFound):
            await session.carry_out(GetSchemaById(1))
        made = await session.carry_out(avro("orders", "a"))
        assert (made.schema_id, made.version, made.definition_id) == (2, 1, 5)
        assert [key for key, _ in door.directory.store.scan("schemas/definitions/")] == [
            f"schemas/definitions/{5:016x}"
        ]

    world.run(story)


def test_references_are_versions_that_exist_and_stay(world: DoorWorld) -> None:
    async def story(door: Door) -> None:
        session = caller(door)
        await session.carry_out(RegisterSchema("line", "avro", record("sku", name="Line")))
        order = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "line", "type": "Line"}]})
        asked = RegisterSchema("orders", "avro", order, [SchemaReference("Line", "line", 1)])
        with pytest.raises(SchemaInvalid, match="unknown type 'Line'"):
            await session.carry_out(RegisterSchema("orders", "avro", order))
        with pytest.raises(SchemaNotFound, match="names version 2 of 'line', which does not exist"):
            await session.carry_out(RegisterSchema("orders", "avro", order, [SchemaReference("Line", "line", 2)]))
        assert (await session.carry_out(asked)).version == 1
        assert not (await session.carry_out(asked)).is_new
        assert (await session.carry_out(GetSchema("orders"))).references == [SchemaReference("Line", "line", 1)]
        for version in (1, None):
            with pytest.raises(SchemaInUse, match="is referred to by version 1 of 'orders'"):
                await session.carry_out(DeleteSchema("line", version))
        await session.carry_out(DeleteSchema("orders"))
        assert (await session.carry_out(DeleteSchema("line"))).versions == [1]
        left = door.directory.store.scan("schemas/")
        assert [key for key, _ in left] == ["schemas/ids"]

    world.run(story)


def test_lists_come_in_pages(world: DoorWorld) -> None:
    async def story(door: Door) -> None:
        session = caller(door)
        for name in ("a", "b", "bb", "c"):
            await session.carry_out(avro(name, "x"))
        found = await session.carry_out(ListSubjects(limit=2))
        assert ([each.subject for each in found.subjects], found.more) == (["a", "b"], True)
        found = await session.carry_out(ListSubjects(after="b"))
        assert ([each.subject for each in found.subjects], found.more) == (["bb", "c"], False)
        found = await session.carry_out(ListSubjects("b"))
        assert [each.subject for each in found.subjects] == ["b", "bb"]
        await session.carry_out(avro("a", "x", "y"))
        versions = await session.carry_out(ListSchemaVersions("a", limit=1))
        assert ([each.version for each in versions.versions], versions.more) == ([1], True)
        versions = await session.carry_out(ListSchemaVersions("a", after=1))
        assert ([each.version for each in versions.versions], versions.more) == ([2], False)

    world.run(story)


@pytest.mark.parametrize("name", ["", "a" * 256, "a\nb", "\ud800"])
def test_names_of_subjects_are_short_and_printable(world: DoorWorld, name: str) -> None:
    async def story(door: Door) -> None:
        with pytest.raises(SubjectInvalid):
            await caller(door).carry_out(avro(name, "a"))

    world.run(story)


def test_a_registry_has_a_bounded_number_of_subjects_and_versions(
    world: DoorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("SCHEMA_SUBJECTS_MAX", "SCHEMA_VERSIONS_MAX"):
        monkeypatch.setattr(f"pydanube.broker.schemas.registry.{limit}", 2)

    async def story(door: Door) -> None:
        session = caller(door)
        for asked in (avro("a", "x"), avro("a", "x", "y"), avro("b", "x")):
            await session.carry_out(asked)
        for asked in (avro("a", "x", "y", "z"), avro("c", "x")):
            with pytest.raises(LimitReached):
                await session.carry_out(asked)

    world.run(story)


def definition(*names: str, default: bool = True) -> Definition:
    return Definition(SchemaType.AVRO, record(*names, default=default))


def test_three_brokers_that_register_one_definition_at_once_make_one_version(world: DoorWorld) -> None:
    async def story(door: Door) -> None:
        brokers = [Registry(door.directory.store, door.clock, door.offload) for _ in range(3)]
        made = await asyncio.gather(*(each.register("orders", definition("a")) for each in brokers))
        assert {found.schema.version for found, _ in made} == {1}
        assert [is_new for _, is_new in made].count(True) == 1
        assert len(brokers[0].versions("orders")) == 1

    world.run(story)


@pytest.mark.parametrize("seed", range(8))
def test_brokers_that_register_at_once_get_one_order_and_ids_of_their_own(seed: int) -> None:
    """Each definition is compatible with an empty record and with no other, so exactly one of them can follow it."""
    world = DoorWorld(seed)

    async def story(door: Door) -> None:
        brokers = [Registry(door.directory.store, door.clock, door.offload) for _ in range(3)]
        await brokers[0].set_mode(None, None)
        await brokers[0].register("shared", definition())
        await brokers[0].set_mode("shared", None)
        tasks = [each.register("shared", definition(f"f{n}", default=False)) for n, each in enumerate(brokers)]
        tasks += [each.register(f"own{n}", definition("a")) for n, each in enumerate(brokers)]
        await brokers[0].set_mode("shared", None)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, SchemaIncompatible) for each in done[:3])
        found = [each[0] for each in done[3:] if not isinstance(each, BaseException)]
        assert len({each.subject.id for each in found}) == len({each.schema.definition_id for each in found}) == 3
        both = [each.register("both", definition(f"f{n}")) for n, each in enumerate(brokers)]
        made = [found.schema for found, _ in await asyncio.gather(*both)]
        assert sorted(each.version for each in made) == [1, 2, 3]
        strict = [each.register("strict", definition(f"f{n}", default=False)) for n, each in enumerate(brokers)]
        ended = await asyncio.gather(*strict, return_exceptions=True)
        assert [isinstance(each, SchemaIncompatible) for each in ended].count(True) == 2  # the first one decides

    world.run(story)
    world.end()


def test_a_reference_and_a_deletion_at_once_never_leave_a_reference_to_nothing(world: DoorWorld) -> None:
    async def story(door: Door) -> None:
        session = caller(door)
        order = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "line", "type": "Line"}]})
        for number in range(10):
            line, orders = f"line{number}", f"orders{number}"
            await session.carry_out(RegisterSchema(line, "avro", record("sku", name="Line")))
            await asyncio.gather(
                session.carry_out(RegisterSchema(orders, "avro", order, [SchemaReference("Line", line, 1)])),
                session.carry_out(DeleteSchema(line)),
                return_exceptions=True,
            )
            names = {each.subject for each in (await session.carry_out(ListSubjects())).subjects}
            assert line in names or orders not in names

    world.run(story)


def test_no_id_is_given_twice_wherever_the_power_goes() -> None:
    """What was answered stays; what was not is there as a whole or not at all, and its ids are not given again."""
    cut = 0
    over = False
    while not over:
        world = DoorWorld(seed=cut)
        answered: list[tuple[int, int, int]] = []

        async def before(door: Door) -> None:
            await caller(door).carry_out(avro("orders", "a"))

        async def work(door: Door, answered: list[tuple[int, int, int]] = answered) -> None:
            for names in ("ab", "abc"):
                made = await caller(door).carry_out(avro("orders", *names))
                answered.append((made.schema_id, made.version, made.definition_id))
            made = await caller(door).carry_out(avro("bills", "a"))
            answered.append((made.schema_id, made.version, made.definition_id))

        over = world.run_until_cut(before, work, cut)

        async def after(door: Door, answered: list[tuple[int, int, int]] = answered) -> None:
            session = caller(door)
            for schema, version, _ in answered:
                assert (await session.carry_out(GetSchemaById(schema, version))).version == version
            there = {
                each.definition_id
                for subject in (await session.carry_out(ListSubjects())).subjects
                for each in (await session.carry_out(ListSchemaVersions(subject.subject))).versions
            }
            new = await session.carry_out(avro("new", "a"))
            assert new.definition_id not in there | {each[2] for each in answered}
            assert new.schema_id not in {1, *(each[0] for each in answered)}

        world.run(after)
        world.end()
        cut += 1
    assert cut > 3


def test_rights_that_end_while_a_definition_is_judged_count(world: DoorWorld) -> None:
    asked: list[Action] = []

    async def story(door: Door) -> None:
        def refuse_the_second(principal: Principal, action: Action, resource: Resource) -> None:
            asked.append(action)
            if len(asked) > 1:
                raise NotAllowed(f"{principal} may not {action} {resource}")

        allowed, door.authorise = door.authorise, Asking(refuse_the_second)
        with pytest.raises(NotAllowed):
            await caller(door).carry_out(avro("orders", "a"))
        door.authorise = allowed
        assert (await caller(door).carry_out(ListSubjects())).subjects == []

    world.run(story)
    assert asked == [Action.SCHEMA_REGISTER] * 2


def test_a_large_comparison_runs_off_the_loop(world: DoorWorld) -> None:
    """The loop only decides: parsing and comparing go through the offload port."""
    calls: list[str] = []

    async def story(door: Door) -> None:
        run = door.offload.run

        def counted(function: Any, *arguments: Any) -> Any:
            calls.append(function.__name__)
            return run(function, *arguments)

        door.schemas._offload = type("Counting", (), {"run": staticmethod(counted)})()
        await caller(door).carry_out(avro("orders", "a"))
        await caller(door).carry_out(CheckSchema("orders", "avro", record("a")))

    world.run(story)
    assert calls == ["judge", "judge"]
