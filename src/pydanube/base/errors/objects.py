"""Object storage and the segments in it."""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError


class ObjectMissing(DanubeError):
    """Object storage has nothing under this key."""

    code = "object_missing"
    blame = "environment"
    help = "Check `storage.objects.url`, and restore the object from a backup or a version of the bucket."


class ObjectExists(DanubeError):
    """There is an object under this key already, and objects are never changed."""

    code = "object_exists"
    blame = "environment"
    help = "Look at who else writes to this place; give every broker a prefix of its own."


class ObjectsFailed(DanubeError):
    """Object storage did not answer, or answered with an error that may pass."""

    code = "objects_failed"
    blame = "environment"
    retriable = True
    help = "Wait: it is tried again, and nothing is lost meanwhile. Check the network and the storage service."


class ObjectsRefused(DanubeError):
    """Object storage refused: credentials, permissions, a bucket that is not there, or a wrong option."""

    code = "objects_refused"
    blame = "environment"
    help = "Correct `storage.objects.url`, its options or the credentials in the environment."


class SegmentMissing(DanubeError):
    """The object of a segment is gone. What it held cannot be read, and nothing is deleted because of it."""

    code = "segment_missing"
    blame = "environment"
    help = "Restore the object that is named from a backup or a version of the bucket."


class SegmentDamaged(DanubeError):
    """The object of a segment is not what was written. It is not served, and nothing is deleted because of it."""

    code = "segment_damaged"
    blame = "environment"
    help = "Restore the object that is named from a backup or a version of the bucket."


class SegmentConflict(DanubeError):
    """Another object than the one to be written lies under the key of a segment."""

    code = "segment_conflict"
    blame = "environment"
    help = "Look at who else writes to this place. Move the object that is named away, and it is written anew."


class TierBusy(DanubeError):
    """More is asked of the cold tier at once than may wait."""

    code = "tier_busy"
    blame = "environment"
    retriable = True
    help = "Try again in a moment."
