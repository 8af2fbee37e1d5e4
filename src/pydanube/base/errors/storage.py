"""Batches, ledgers, storage nodes, disks and the metadata store."""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError

# -- batches ---------------------------------------------------------------------------------------------------------


class BatchInvalid(DanubeError):
    """Bytes that claim to be a batch and break a rule of the format that no accident explains."""

    code = "batch_invalid"
    blame = "caller"
    help = "Build batches with the client library of this version."


class BatchDamaged(DanubeError):
    """A checksum of a batch does not match its bytes."""

    code = "batch_damaged"
    blame = "environment"
    retriable = True
    help = "Send or read it again; if it stays damaged, check the disk or the network."


class BatchTooLarge(DanubeError):
    """More messages or more bytes than one batch may have, before or after decompression."""

    code = "batch_too_large"
    blame = "caller"
    help = "Split it into smaller batches."


# -- ledgers and storage nodes ---------------------------------------------------------------------------------------


class LedgerNotFound(DanubeError):
    """This node has never heard of the ledger, or has deleted it."""

    code = "ledger_not_found"
    blame = "caller"
    help = "List the ledgers of the node; ask the other copies."


class LedgerExists(DanubeError):
    """A ledger of this id was made before with another epoch or durability."""

    code = "ledger_exists"
    blame = "caller"
    help = "Take a new ledger id from the catalogue."


class ArgumentInvalid(DanubeError):
    """A call was given a value that it cannot take."""

    code = "argument_invalid"
    blame = "caller"
    help = "Pass a value of the kind that the message describes."


class LedgerFenced(DanubeError):
    """A newer epoch owns the ledger, or it is closed: a ledger is never reopened for writing."""

    code = "ledger_fenced"
    blame = "caller"
    help = "Recover the ledger and go on in a new one."


class LedgerDamaged(DanubeError):
    """The bytes asked for are on this node, but damaged. They are never served and never dropped."""

    code = "ledger_damaged"
    blame = "environment"
    help = "Read another copy, restore the node's directory from a backup, or see `danube storage salvage`."


class LedgerAway(LedgerDamaged):
    """A part of the ledger may be in a data directory that is missing or cannot be used."""

    code = "ledger_away"
    retriable = True
    help = "Bring the data directory back and start the node again."


class OffsetsDamaged(DanubeError):
    """Every copy of these messages is damaged on disk. Nobody skips them until their loss is accepted."""

    code = "offsets_damaged"
    blame = "environment"
    help = (
        "Restore the storage directory from a backup, or accept the loss with `danube storage salvage`, which lists it "
        "first."
    )
    first: int = 0
    last: int = 0

    @classmethod
    def between(cls, first: int, last: int, title: str) -> OffsetsDamaged:
        """`title` is a topic's name, or says whose state it is: then offsets mean nothing to anybody."""
        which = f": offset {first} is" if first == last else f": offsets {first} to {last} are"
        *state, topic = title.split(" ")
        found = f"{title} is" if state else f"{topic}{which}"
        error = cls(f"{found} damaged on disk; see `danube storage salvage {topic} --dry-run`")
        error.first, error.last = first, last
        return error


class EntryMissing(DanubeError):
    """The node does not hold the entry, and would if it had ever promised to."""

    code = "entry_missing"
    blame = "caller"
    help = "Ask another copy; during recovery this counts as one true absence."


class EntryConflict(DanubeError):
    """Another entry stands at this offset already."""

    code = "entry_conflict"
    blame = "caller"
    help = "Stop the writer: two writers used one epoch."


class OffsetNotConfirmed(DanubeError):
    """The offset lies above what the ack quorum is known to hold, so nobody may see it yet."""

    code = "offset_not_confirmed"
    blame = "caller"
    retriable = True
    help = "Wait until it is confirmed."


class LedgerUnrecoverable(DanubeError):
    """Too few copies answer to decide whether an entry was acknowledged. Nothing is dropped meanwhile."""

    code = "ledger_unrecoverable"
    blame = "environment"
    retriable = True
    help = "Bring back one more of the ledger's storage nodes."


class QuorumLost(DanubeError):
    """An entry cannot reach its ack quorum any more; whether it was kept is decided by recovery."""

    code = "quorum_lost"
    blame = "environment"
    retriable = True
    help = "Send it again with the same producer sequence; the topic goes on in a new ledger."


class NodeBusy(DanubeError):
    """The queue in front of the journal is full."""

    code = "node_busy"
    blame = "environment"
    retriable = True
    help = "Send more slowly, or wait for acknowledgements before sending more."


class TooManyLedgers(DanubeError):
    """The node keeps as many ledgers as it can account for."""

    code = "too_many_ledgers"
    blame = "environment"
    retriable = True
    help = "Delete ledgers, let them age out, or add a storage node."


class NodeClosed(DanubeError):
    """The storage node is stopping or stopped."""

    code = "node_closed"
    blame = "environment"
    retriable = True
    help = "Connect to another node, or wait for this one to start."


class NodeUnreachable(DanubeError):
    """No answer in time. What was asked may or may not have happened."""

    code = "node_unreachable"
    blame = "environment"
    retriable = True
    help = "Check that the node runs and that the network reaches it."


class NodeReplaced(DanubeError):
    """Another node answers where this one was: its disk was wiped, so what it lacks proves nothing."""

    code = "node_replaced"
    blame = "environment"
    help = "Let the ledger recover from its other copies."


class CatalogConflict(DanubeError):
    """Somebody else changed the record first."""

    code = "catalog_conflict"
    blame = "environment"
    retriable = True
    help = "Load the record again and decide anew."


class OwnershipLost(DanubeError):
    """A newer owner has taken the topic; this one may neither append nor decide any more."""

    code = "ownership_lost"
    blame = "environment"
    retriable = True
    help = "Look up the topic's owner and send there."


class NodeDirectoryInvalid(DanubeError):
    """The directory is another node's, another version's, or damaged where nothing can be trusted without it."""

    code = "node_directory_invalid"
    blame = "environment"
    help = "Point the node at its own directory, or restore it from a backup; never delete files from it."


class DirectoryInUse(DanubeError):
    """Another process has the directory."""

    code = "directory_in_use"
    blame = "caller"
    help = "Stop the other process, or choose another directory."


class StorageKindUnknown(DanubeError):
    """No storage node of that kind is installed."""

    code = "storage_kind_unknown"
    blame = "caller"
    help = "Use `disk` or `memory`, or install the package that provides the kind."


# -- disks -----------------------------------------------------------------------------------------------------------


class DiskFull(DanubeError):
    """No room to write. Reads and deletions go on."""

    code = "disk_full"
    blame = "environment"
    retriable = True
    help = "Free space or add a disk; the topic goes on by itself."


class DiskFailed(DanubeError):
    """The operating system could not write, sync or read. It is never retried as if it had worked."""

    code = "disk_failed"
    blame = "environment"
    help = "Check the disk and the kernel's log; if the file stays unreadable, restore the directory from a backup."


class FileMissing(DanubeError):
    """A file that was named is not there."""

    code = "file_missing"
    blame = "environment"
    help = "Restore the directory from a backup."


# -- metadata --------------------------------------------------------------------------------------------------------


class MetadataConflict(DanubeError):
    """A key has another version than the transaction expects; nothing of it was done."""

    code = "metadata_conflict"
    blame = "environment"
    retriable = True
    help = "Read the keys again and decide anew."


class MetadataInvalid(DanubeError):
    """A transaction, key, value, watch or session that the metadata store cannot take."""

    code = "metadata_invalid"
    blame = "caller"
    help = "Correct what the message names."


class MetadataFull(DanubeError):
    """The metadata store holds as many keys, bytes, watches or sessions as it may."""

    code = "metadata_full"
    blame = "environment"
    help = "Delete what is not needed any more, then try again."


class MetadataBusy(DanubeError):
    """More transactions wait for the metadata log than may be held in memory."""

    code = "metadata_busy"
    blame = "environment"
    retriable = True
    help = "Wait for what was sent before, then try again."


class MetadataDamaged(DanubeError):
    """The metadata directory is damaged or incomplete. Nothing of it is served, and nothing is deleted."""

    code = "metadata_damaged"
    blame = "environment"
    help = "Restore the metadata directory from a backup; never delete files from it."


class MetadataClosed(DanubeError):
    """The metadata store is closed."""

    code = "metadata_closed"
    blame = "environment"
    retriable = True
    help = "Wait for the broker to start again, or ask another one."


class WatchLagged(DanubeError):
    """A watcher did not keep up, and changes after the last one it took are not remembered."""

    code = "watch_lagged"
    blame = "caller"
    retriable = True
    help = "Watch again, then scan."


class SessionExpired(DanubeError):
    """The session was not kept alive in time or was closed; its keys are gone or going."""

    code = "session_expired"
    blame = "caller"
    help = "Open a new session and write its keys again."
