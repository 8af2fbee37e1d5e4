"""Settings of a broker with object storage in a dict of the test's own."""

from __future__ import annotations

from typing import Any

from pydanube.adapters.objects_url import ObjectsLocation
from pydanube.broker.standalone import ObjectsSettings
from pydanube.ports.segments import Segments
from pydanube.stream.tiering import TierSettings
from pydanube.tier.direct import DirectSegments
from tier.objects_world import WorldObjects


def in_memory(objects: WorldObjects | None = None, **settings: Any) -> dict[str, Any]:
    """For `StandaloneSettings`. It is claimed as a real place is; `settings` are those of `TierSettings`."""

    def segments(_: ObjectsLocation) -> Segments:
        return DirectSegments(WorldObjects() if objects is None else objects)

    place = ObjectsLocation("s3", {"bucket": "bucket", "root": "/danube/"}, "s3://bucket/danube")
    return {"objects": ObjectsSettings(place, TierSettings(**settings)), "segments": segments}
