"""Batches, ledgers, storage nodes, disks and the metadata store."""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError, ExitCode, GrpcStatus

# -- batches ---------------------------------------------------------------------------------------------------------


class BatchInvalid(DanubeError):
    """The bytes claim to be a batch but break a rule of the format, in a way that damage cannot explain."""

    blame = "caller"
    grpc_status = GrpcStatus.INVALID_ARGUMENT
    help = "Build batches with the client library of this version."


class BatchDamaged(DanubeError):
    """The checksum of a batch does not match its bytes."""

    blame = "environment"
    retriable = True
    help = "Send or read it again; if it is still damaged, check the disk or the network."


class BatchTooLarge(DanubeError):
    """The batch has more messages or bytes than allowed, before or after decompression."""

    blame = "caller"
    http_status = 413
    grpc_status = GrpcStatus.INVALID_ARGUMENT
    help = "Split it into smaller batches."


# -- ledgers and storage nodes ---------------------------------------------------------------------------------------


class LedgerNotFound(DanubeError):
    """This node does not know the ledger, or has deleted it."""

    blame = "caller"
    help = "List the ledgers of the node, or ask the other copies."


class LedgerExists(DanubeError):
    """A ledger with this id already exists with another epoch or durability."""

    blame = "caller"
    help = "Take a new ledger id from the catalogue."


class ArgumentInvalid(DanubeError):
    """An argument is out of range, has the wrong type, or contradicts another argument."""

    blame = "caller"
    grpc_status = GrpcStatus.INVALID_ARGUMENT
    exit_code = ExitCode.USAGE
    help = "Correct the argument; docs/client.md describes the Python API."
    command_help = ""  # the message says it all


class LedgerFenced(DanubeError):
    """A newer epoch owns the ledger, or the ledger is closed. A ledger is never reopened for writing."""

    blame = "caller"
    help = "Recover the ledger and continue in a new one."


class LedgerDamaged(DanubeError):
    """The requested bytes are on this node, but damaged. They are never served and never deleted."""

    blame = "environment"
    help = "Read another copy, restore the node's directory from a backup, or see `danube storage salvage`."


class LedgerAway(LedgerDamaged):
    """Part of the ledger may be in a data directory that is missing or unusable."""

    retriable = True
    help = "Bring the data directory back and start the node again."


class OffsetsDamaged(DanubeError):
    """Every copy of these messages is damaged on disk. They are not skipped until an operator accepts the loss."""

    blame = "environment"
    grpc_status = GrpcStatus.DATA_LOSS
    help = (
        "Restore the storage directory from a backup, or accept the loss with `danube storage salvage`, which lists it "
        "first."
    )
    first: int = 0
    last: int = 0

    @classmethod
    def between(cls, first: int, last: int, title: str) -> OffsetsDamaged:
        """`title` is the name of a topic, or "state of" one, whose offsets mean nothing to people."""
        which = f": offset {first} is" if first == last else f": offsets {first} to {last} are"
        *state, topic = title.split(" ")
        found = f"{title} is" if state else f"{topic}{which}"
        error = cls(f"{found} damaged on disk; see `danube storage salvage {topic} --dry-run`")
        error.first, error.last = first, last
        return error


class EntryMissing(DanubeError):
    """The node does not hold the entry and never promised to."""

    blame = "caller"
    help = "Ask another copy; recovery counts this as one proven absence."


class EntryConflict(DanubeError):
    """A different entry already exists at this offset."""

    blame = "caller"
    help = "Stop the writer: two writers used the same epoch."


class OffsetNotConfirmed(DanubeError):
    """The offset is above what the ack quorum is known to hold, so it cannot be read yet."""

    blame = "caller"
    retriable = True
    http_status = 409
    help = "Wait until it is confirmed."
    command_help = "Use a smaller offset."


class LedgerUnrecoverable(DanubeError):
    """Too few copies answer to decide whether an entry was acknowledged. Nothing is dropped in the meantime."""

    blame = "environment"
    retriable = True
    help = "Bring back one more of the ledger's storage nodes."


class QuorumLost(DanubeError):
    """An entry can no longer reach its ack quorum; recovery decides whether it was kept."""

    blame = "environment"
    retriable = True
    help = "Send it again with the same producer sequence; the topic continues in a new ledger."


class NodeBusy(DanubeError):
    """The queue of the journal is full."""

    blame = "environment"
    retriable = True
    help = "Send more slowly, or wait for acknowledgements before sending more."


class TooManyLedgers(DanubeError):
    """The node already holds as many ledgers as it can track."""

    blame = "environment"
    retriable = True
    help = "Delete ledgers, let them age out, or add a storage node."


class NodeClosed(DanubeError):
    """The storage node is stopping or stopped."""

    blame = "environment"
    retriable = True
    help = "Connect to another node, or wait for this one to start."


class NodeUnreachable(DanubeError):
    """The node did not answer in time. The request may or may not have taken effect."""

    blame = "environment"
    retriable = True
    help = "Check that the node is running and that the network reaches it."


class NodeReplaced(DanubeError):
    """Another node answers at this address: its disk was wiped, so an entry missing there proves nothing."""

    blame = "environment"
    help = "Let the ledger recover from its other copies."


class CatalogConflict(DanubeError):
    """Another process changed the record first."""

    blame = "environment"
    retriable = True
    help = "Load the record again and decide again."


class OwnershipLost(DanubeError):
    """A newer owner has taken over the topic; this one may no longer append or decide."""

    blame = "environment"
    retriable = True
    help = "Look up the topic's owner and send there."


class NodeDirectoryInvalid(DanubeError):
    """The directory belongs to another node or version, or a file that everything depends on is damaged."""

    blame = "environment"
    help = "Point the node at its own directory, or restore it from a backup; never delete files from it."


class DirectoryInUse(DanubeError):
    """Another process is using the directory."""

    blame = "caller"
    help = "Stop the other process, or choose another directory."


class StorageKindUnknown(DanubeError):
    """No storage node of this kind is installed."""

    blame = "caller"
    help = "Use `disk` or `memory`, or install the package that provides the kind."


# -- disks -----------------------------------------------------------------------------------------------------------


class BackupRunning(DanubeError):
    """Another backup of this broker is in progress; only one can run at a time."""

    blame = "caller"
    retriable = True
    help = "Wait until it finishes. A backup whose client is gone ends within a minute."


class BackupEnded(DanubeError):
    """The backup was ended: its client was silent for too long, or the broker was restarted."""

    blame = "environment"
    help = "Delete the incomplete backup and create a new one."


class BackupInvalid(DanubeError):
    """The backup is incomplete, or was damaged or changed after it was created."""

    blame = "environment"
    help = "Use another backup; `danube backup verify` names the files that are wrong."


class DiskFull(DanubeError):
    """The disk has no room for new messages. Reads and deletions continue."""

    blame = "environment"
    retriable = True
    help = "Free some space or use a larger disk. A running broker then resumes publishing automatically."


class DiskFailed(DanubeError):
    """The operating system failed to write, sync or read. A failed write is never treated as done."""

    blame = "environment"
    help = "Check the disk and the kernel's log; if the file stays unreadable, restore the directory from a backup."


class FileMissing(DanubeError):
    """A file that should exist is missing."""

    blame = "environment"
    help = "Restore the directory from a backup."


# -- metadata --------------------------------------------------------------------------------------------------------


class MetadataConflict(DanubeError):
    """A key has a different version than the transaction expects; the transaction changed nothing."""

    blame = "environment"
    retriable = True
    help = "Read the keys again and decide again."


class MetadataInvalid(DanubeError):
    """The metadata store cannot accept this transaction, key, value, watch or session."""

    blame = "caller"
    help = "Report it with the message: a broker should never send such a request."


class MetadataFull(DanubeError):
    """The metadata store already holds as many keys, bytes, watches or sessions as it can."""

    blame = "environment"
    help = "Delete topics, namespaces or subscriptions that you no longer need, then try again."


class MetadataBusy(DanubeError):
    """Too many transactions are waiting for the metadata log."""

    blame = "environment"
    retriable = True
    help = "Wait for earlier requests to finish, then try again."


class MetadataDamaged(DanubeError):
    """The metadata directory is damaged or incomplete. Nothing in it is served, and nothing is deleted."""

    blame = "environment"
    help = "Restore the metadata directory from a backup; never delete files from it."


class MetadataOutdated(DanubeError):
    """The metadata is an older copy than the storage node beside it. Nothing was changed."""

    blame = "environment"
    help = "Restore the newest metadata directory, or both directories from the same backup."


class MetadataClosed(DanubeError):
    """The metadata store is closed."""

    blame = "environment"
    retriable = True
    help = "Wait for the broker to start again, or use another broker."


class WatchLagged(DanubeError):
    """The watcher did not keep up, and the changes that it missed are no longer stored."""

    blame = "caller"
    retriable = True
    help = "Watch again, then scan."


class SessionExpired(DanubeError):
    """The session was closed or not kept alive in time; its keys are deleted."""

    blame = "caller"
    help = "Open a new session and write its keys again."
