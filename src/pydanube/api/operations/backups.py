"""Backups, for a client that copies them: begun, listed and ended. `backup.read` beside them needs a connection."""

from __future__ import annotations

from pydanube.api.operations.fields import number, text
from pydanube.api.operations.verbs import Caller, Verb
from pydanube.base.errors import RequestInvalid
from pydanube.base.limits import BACKUP_FILES_LISTED_MAX
from pydanube.broker.door.backups import Backups
from pydanube.wire.objects import Object


def backups_of(caller: Caller) -> Backups:
    found = caller.service.admin.backups
    if found is None:
        raise RequestInvalid("this broker has no storage of its own to back up")
    return found


async def begin(caller: Caller, fields: Object) -> Object:
    """A cut through all that the broker has on its disk, of this moment. `objects` is where the rest lies, if any."""
    backups = backups_of(caller)
    number, cut = await backups.begin()
    tiers = caller.service.tiers
    return {
        "backup": number,
        "files": len(cut.files),
        "bytes": sum(file.length for file in cut.files),
        "revision": cut.revision,
        "node": backups.node,
        "objects": tiers.status().location if tiers.configured else None,
    }


async def files(caller: Caller, fields: Object) -> Object:
    """In the order to copy them in, behind the one named `after`."""
    found = backups_of(caller).files(number(fields, "backup"), text(fields, "after", ""), BACKUP_FILES_LISTED_MAX)
    return {"files": [{"name": file.name, "bytes": file.length, "size": file.size} for file in found]}


async def end(caller: Caller, fields: Object) -> Object:
    backups_of(caller).end(number(fields, "backup"))
    return {}


VERBS: dict[str, Verb] = {"backup.begin": begin, "backup.files": files, "backup.end": end}
