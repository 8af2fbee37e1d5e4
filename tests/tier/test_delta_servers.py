"""Tables at real servers of object storage: made with the same options as segments, read by others, by many at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import polars
import pytest
from deltalake import DeltaTable

from pydanube.adapters.objects_url import delta_options, parse_objects_url
from pydanube.adapters.opendal_objects import OpendalObjects
from pydanube.base.errors import ObjectsFailed, ObjectsRefused
from pydanube.base.ids import Epoch
from pydanube.stream.delta_table import TableListing, listing_of
from pydanube.stream.segments import Segment, segment_key
from pydanube.tier.delta import DeltaTables
from pydanube.tier.direct import DirectSegments
from servers.fixtures import ObjectServer
from tier.rows_world import plan_of, simple
from tier.test_direct import flow
from wire.batches import NOW

WRITERS = 4


@pytest.fixture
def server(request: pytest.FixtureRequest) -> ObjectServer:
    found: ObjectServer = request.getfixturevalue(f"{request.param}_server")
    return found


async def written(segments: DirectSegments, stream: str) -> Segment:
    batches = simple(50)
    plan = plan_of(batches)
    return await segments.write(segment_key(stream, plan), plan, stream, flow(batches))


def listing(stream: str, *segments: Segment) -> TableListing:
    return listing_of(stream, Epoch(1), segments, now=NOW, grows=True)


@pytest.mark.parametrize("server", ["moto", "swift", "azurite"], indirect=True)
def test_a_table_is_made_grows_shrinks_and_is_read(server: ObjectServer) -> None:
    given = server.place()
    place = parse_objects_url(given.url, given.options, given.environment)
    found = delta_options(place)
    assert found is not None
    uri, options = found

    async def story() -> None:
        segments = DirectSegments(OpendalObjects(place))
        try:
            made = {stream: await written(segments, stream) for stream in ("t1.0", "t1.1")}
        finally:
            await segments.close()
        tables = DeltaTables(uri, options, place.secrets())
        for stream, segment in made.items():
            assert tables.follow(listing(stream, segment)) == ()
        table = polars.read_delta(f"{uri}/t1", storage_options=options)
        assert sorted(table.select("partition", "offset").rows()) == [(p, n) for p in range(2) for n in range(50)]
        tables.follow(listing("t1.0"))
        assert DeltaTable(f"{uri}/t1", storage_options=options).to_pyarrow_table().num_rows == 50

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.parametrize("server", ["moto", "azurite"], indirect=True)
def test_many_who_commit_at_once_lose_nothing(server: ObjectServer) -> None:
    given = server.place()
    place = parse_objects_url(given.url, given.options, given.environment)
    found = delta_options(place)
    assert found is not None
    streams = [f"t1.{number}" for number in range(WRITERS)]

    def commit(stream: str) -> None:
        segment = Segment(0, 9, Epoch(1), 10, 100, 100, "c", "d", NOW, NOW, (0,))
        DeltaTables(*found).follow(listing(stream, segment))

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(commit, streams))
    table = DeltaTable(f"{found[0]}/t1", storage_options=found[1])
    assert sorted(each["partition"] for each in table.partitions()) == ["0", "1", "2", "3"]
    assert len(table.file_uris()) == WRITERS


@pytest.mark.parametrize("server", ["swift"], indirect=True)
def test_a_wrong_password_is_an_error_that_does_not_show_it(server: ObjectServer) -> None:
    given = server.place()
    wrong = {**given.environment, "AWS_SECRET_ACCESS_KEY": "wrong-password"}
    place = parse_objects_url(given.url, given.options, wrong)
    found = delta_options(place)
    assert found is not None
    segment = Segment(0, 9, Epoch(1), 10, 100, 100, "c", "d", NOW, NOW, (0,))
    with pytest.raises((ObjectsFailed, ObjectsRefused)) as caught:
        DeltaTables(*found, place.secrets()).follow(listing("t1", segment))
    assert "wrong-password" not in str(caught.value)
