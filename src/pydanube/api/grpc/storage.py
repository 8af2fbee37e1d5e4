"""`danube.StorageService`: the sealed parts of a topic's log that still exist."""

from __future__ import annotations

from typing import Any

from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.messages import Messages
from pydanube.base.limits import SECOND

danube = Messages("danube")


class StorageService:
    name = "danube.StorageService"

    async def list_segment_descriptors(self, call: Call, request: Any) -> Any:
        """The segments that start after `after_offset`; 0 means from the beginning, including the first one."""
        name = request.topic if request.topic.startswith("/") else f"/{request.topic}"
        answer = danube.ListSegmentDescriptorsResponse()
        for part in await call.session.storage.segments(name):
            if part.first > request.after_offset or not request.after_offset:
                answer.segments.add(
                    segment_id=part.id,
                    start_offset=part.first,
                    end_offset=part.last,
                    size=part.size or part.bytes,
                    created_at=part.newest // SECOND,
                )
        return answer
