"""Backups, for a client that copies them: begun, listed and ended. `backup.read` beside them needs a connection."""

from __future__ import annotations

from pydanube.api.operations.fields import number, text
from pydanube.api.operations.verbs import Verb
from pydanube.base.limits import BACKUP_FILES_LISTED_MAX
from pydanube.broker.door.session import Session
from pydanube.wire.objects import Object


async def begin(session: Session, fields: Object) -> Object:
    """A cut through all that the broker has on its disk, of this moment. `objects` is where the rest lies, if any."""
    begun = (await session.backups.begin())._asdict()
    return {"backup": begun.pop("number"), **begun}


async def files(session: Session, fields: Object) -> Object:
    """In the order to copy them in, behind the one named `after`."""
    found = session.backups.files(number(fields, "backup"), text(fields, "after", ""), BACKUP_FILES_LISTED_MAX)
    return {"files": [{"name": file.name, "bytes": file.length, "size": file.size} for file in found]}


async def end(session: Session, fields: Object) -> Object:
    session.backups.end(number(fields, "backup"))
    return {}


VERBS: dict[str, Verb] = {"backup.begin": begin, "backup.files": files, "backup.end": end}
