"""Object storage and the segments in it."""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError, GrpcStatus


class ObjectMissing(DanubeError):
    """Object storage has no object with this key."""

    blame = "environment"
    help = "Check `storage.objects.url`, and restore the object from a backup or from a version kept by the bucket."


class ObjectExists(DanubeError):
    """An object with this key already exists, and objects are never changed."""

    blame = "environment"
    help = "Find out what else writes to this location; give every broker its own prefix."


class ObjectsFailed(DanubeError):
    """Object storage did not answer, or answered with a temporary error."""

    blame = "environment"
    retriable = True
    help = "Wait: the broker retries, and nothing is lost in the meantime. Check the network and the storage service."


class ObjectsRefused(DanubeError):
    """Object storage refused the request: wrong credentials, missing permissions, a missing bucket or an invalid
    option."""

    blame = "environment"
    help = "Correct `storage.objects.url`, its options, or the credentials in the environment."


class SegmentMissing(DanubeError):
    """The object of a segment is gone. Its messages cannot be read; nothing else is deleted because of it."""

    blame = "environment"
    grpc_status = GrpcStatus.DATA_LOSS
    help = "Restore the named object from a backup or from a version kept by the bucket."


class SegmentDamaged(DanubeError):
    """The object of a segment differs from what was written. It is not served; nothing is deleted because of it."""

    blame = "environment"
    grpc_status = GrpcStatus.DATA_LOSS
    help = "Restore the named object from a backup or from a version kept by the bucket."


class SegmentConflict(DanubeError):
    """A different object already exists under the key of a segment."""

    blame = "environment"
    help = (
        "Find out what else writes to this location, then move the named object away; the broker writes the segment "
        "again."
    )


class TierBusy(DanubeError):
    """Too many requests are waiting for the cold tier."""

    blame = "environment"
    retriable = True
    help = "Try again in a moment."
