"""Backups, for a client that copies them: begin, list and end. `backup.read` is elsewhere: it needs a connection."""

from __future__ import annotations

from pydanube.api.operations.fields import number, text
from pydanube.api.operations.verbs import Verb
from pydanube.base.limits import BACKUP_FILES_LISTED_MAX
from pydanube.broker.door.session import Session
from pydanube.wire.objects import Object


async def begin(session: Session, fields: Object) -> Object:
    """Begins a backup of everything on the broker's disk at this moment. `objects` says where the rest is, if any."""
    begun = (await session.backups.begin())._asdict()
    return {"backup": begun.pop("number"), **begun}


async def files(session: Session, fields: Object) -> Object:
    """The files after the one named `after`, in the order in which to copy them."""
    found = session.backups.files(number(fields, "backup"), text(fields, "after", ""), BACKUP_FILES_LISTED_MAX)
    return {"files": [{"name": file.name, "bytes": file.length, "size": file.size} for file in found]}


async def end(session: Session, fields: Object) -> Object:
    session.backups.end(number(fields, "backup"))
    return {}


VERBS: dict[str, Verb] = {"backup.begin": begin, "backup.files": files, "backup.end": end}
