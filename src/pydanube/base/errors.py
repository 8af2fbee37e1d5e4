"""The one table of errors: a code for the wire, whose fault it is, whether trying again helps, and what to do.

Every face (native protocol, gRPC, REST, CLI) and the docs take their texts from here; nothing else invents an error.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Blame = Literal["caller", "server", "environment"]


class DanubeError(Exception):
    """The root. `code` never changes once released; `help` is one imperative sentence."""

    code: ClassVar[str] = "internal"
    blame: ClassVar[Blame] = "server"
    retriable: ClassVar[bool] = False
    help: ClassVar[str] = "Report it with the message and the log around it."


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
    """A number that no ledger, epoch or offset can have."""

    code = "argument_invalid"
    blame = "caller"
    help = "Use ids, epochs and offsets as the catalogue and the batches give them."


class LedgerFenced(DanubeError):
    """A newer epoch owns the ledger, or it is closed: a ledger is never reopened for writing."""

    code = "ledger_fenced"
    blame = "caller"
    help = "Recover the ledger and go on in a new one."


class LedgerDamaged(DanubeError):
    """The bytes asked for are on this node, but damaged. They are never served and never dropped."""

    code = "ledger_damaged"
    blame = "environment"
    help = "Read another copy, or restore the node's directory from a backup."


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
    help = "Check the disk; the ledgers on it are fenced."


class FileMissing(DanubeError):
    """A file that was named is not there."""

    code = "file_missing"
    blame = "environment"
    help = "Restore the directory from a backup."


# -- subscriptions and their cursors ---------------------------------------------------------------------------------


class NameInvalid(DanubeError):
    """A name of a subscription or producer is empty, too long, or has characters that cannot be shown."""

    code = "name_invalid"
    blame = "caller"
    help = "Use 1 to 255 bytes of UTF-8 without control characters."


class SubscriptionInvalid(DanubeError):
    """No subscription can have this kind, start or these options."""

    code = "subscription_invalid"
    blame = "caller"
    help = "Choose a known kind, a start that the topic can have, and smaller options."


class SubscriptionExists(DanubeError):
    """The topic has a subscription of this name already."""

    code = "subscription_exists"
    blame = "caller"
    help = "Use the one that is there, or choose another name."


class SubscriptionNotFound(DanubeError):
    """The topic has no such subscription, or it was deleted."""

    code = "subscription_not_found"
    blame = "caller"
    help = "Create the subscription first."


class TooManySubscriptions(DanubeError):
    """The topic has as many subscriptions as it may have."""

    code = "too_many_subscriptions"
    blame = "caller"
    help = "Delete subscriptions that nobody uses."


class AckInvalid(DanubeError):
    """An acknowledgement of something that no consumer can have received, or of too much at once."""

    code = "ack_invalid"
    blame = "caller"
    help = "Acknowledge offsets as they were delivered, in fewer ranges at a time."


class AcksScattered(DanubeError):
    """An acknowledgement too far ahead of the first message that is not acknowledged: the cursor cannot hold it."""

    code = "acks_scattered"
    blame = "environment"
    retriable = True
    help = "Acknowledge the oldest messages first, then try again."


class StateInvalid(DanubeError):
    """A record of a topic's state that no version wrote, or that contradicts the records before it."""

    code = "state_invalid"
    blame = "environment"
    help = "Read another copy of the topic's state, or restore it from a backup."


# -- producers and their sequences -----------------------------------------------------------------------------------


class ProducerUnknown(DanubeError):
    """The topic does not know the producer, or has forgotten it."""

    code = "producer_unknown"
    blame = "caller"
    help = "Attach the producer again."


class ProducerFenced(DanubeError):
    """A newer session has attached under the same producer name."""

    code = "producer_fenced"
    blame = "caller"
    help = "Close this producer; give each running one a name of its own."


class SequenceInvalid(DanubeError):
    """A number that no sequence or count of messages can be."""

    code = "sequence_invalid"
    blame = "caller"
    help = "Number messages from 0 on, one by one."


class SequenceGap(DanubeError):
    """Messages before these are missing: only the sequence after the last one is accepted."""

    code = "sequence_gap"
    blame = "caller"
    help = "Send again from the sequence that is expected."


class SequenceOverlap(DanubeError):
    """A batch repeats messages of another one, but not exactly that batch."""

    code = "sequence_overlap"
    blame = "caller"
    help = "Send a batch again exactly as it was sent first."


class SequenceUnknown(DanubeError):
    """Whether these messages were published before cannot be known: idle producers have been forgotten."""

    code = "sequence_unknown"
    blame = "caller"
    help = "Look for the last message in the topic; if nothing is repeated, attach as a fresh producer."


class OffsetUnknown(DanubeError):
    """The batch was published before, so long ago that its offset is not remembered."""

    code = "offset_unknown"
    blame = "caller"
    help = "Take it as published; read the topic to find where."


class TooManyProducers(DanubeError):
    """The topic remembers as many producers as it can, and none of them has been idle for long."""

    code = "too_many_producers"
    blame = "environment"
    retriable = True
    help = "Use fewer producer names, or publish without deduplication."


# -- dispatch --------------------------------------------------------------------------------------------------------


class ConsumerBusy(DanubeError):
    """An Exclusive subscription has its one consumer already."""

    code = "consumer_busy"
    blame = "caller"
    retriable = True
    help = "Close the other consumer, or subscribe as Failover or Shared."


class ConsumerNotFound(DanubeError):
    """No consumer of that id is connected to the subscription."""

    code = "consumer_not_found"
    blame = "caller"
    retriable = True
    help = "Subscribe again and use the consumer id of the answer."


class TooManyConsumers(DanubeError):
    """The subscription has as many consumers as it can serve."""

    code = "too_many_consumers"
    blame = "caller"
    retriable = True
    help = "Let fewer consumers take more messages each, or add partitions."


class FilterInvalid(DanubeError):
    """Too many key filters, or one that is empty or too long."""

    code = "filter_invalid"
    blame = "caller"
    help = "Use at most 16 key filters of 1 to 256 bytes, on Key-Shared subscriptions only."


class PolicyInvalid(DanubeError):
    """A failure policy or dispatch setting with a value out of its bounds."""

    code = "policy_invalid"
    blame = "caller"
    help = "Correct the value that the message names."


# -- topics ----------------------------------------------------------------------------------------------------------


class TopicRecovering(DanubeError):
    """A write of the topic failed, and it is finding out what became of it."""

    code = "topic_recovering"
    blame = "environment"
    retriable = True
    help = "Try again in a moment; if it lasts, look at the storage nodes."


class TopicBusy(DanubeError):
    """More of the topic waits to become durable than it may hold in memory."""

    code = "topic_busy"
    blame = "environment"
    retriable = True
    help = "Wait for what was sent before, then try again."


class TopicClosed(DanubeError):
    """This broker serves the topic no more."""

    code = "topic_closed"
    blame = "server"
    retriable = True
    help = "Look the topic up again and connect to its owner."


class NotReliable(DanubeError):
    """The topic delivers at most once and keeps nothing, so it cannot do this."""

    code = "not_reliable"
    blame = "caller"
    help = "Create a reliable topic for this."


class SubscriptionKindDiffers(DanubeError):
    """The subscription exists and is of another type."""

    code = "subscription_kind_differs"
    blame = "caller"
    help = "Name the type it has, or another subscription."


class NamespaceNotFound(DanubeError):
    """There is no namespace of that name."""

    code = "namespace_not_found"
    blame = "caller"
    help = "Create it, or name one that exists."


class NamespaceExists(DanubeError):
    """A namespace of that name is there already."""

    code = "namespace_exists"
    blame = "caller"
    help = "Use it as it is, or choose another name."


class NamespaceNotEmpty(DanubeError):
    """The namespace still has topics."""

    code = "namespace_not_empty"
    blame = "caller"
    help = "Delete its topics first."


class TopicNotFound(DanubeError):
    """There is no topic of that name, and it may not be made by using it."""

    code = "topic_not_found"
    blame = "caller"
    help = "Create it with `danube topic create`."


class TopicExists(DanubeError):
    """A topic of that name is there already."""

    code = "topic_exists"
    blame = "caller"
    help = "Use it as it is, or choose another name."


class TopicKindDiffers(DanubeError):
    """The topic is reliable and the producer asked for one that is not, or the other way round."""

    code = "topic_kind_differs"
    blame = "caller"
    help = "Open it as what it is."


class PartitionMissing(DanubeError):
    """The topic has no such partition, or it is partitioned and none was named."""

    code = "partition_missing"
    blame = "caller"
    help = "Ask for the topic's partitions and name one of them."


class LimitReached(DanubeError):
    """A policy of the namespace or topic does not allow more."""

    code = "limit_reached"
    blame = "caller"
    help = "Close what is not needed, or raise the limit in the policies."


class MessageTooLarge(DanubeError):
    """The policies of the namespace or topic allow smaller messages only."""

    code = "message_too_large"
    blame = "caller"
    help = "Send smaller messages, or raise `message_bytes_max`."


class ChannelInvalid(DanubeError):
    """A channel that is not open, is open already, or is of another kind."""

    code = "channel_invalid"
    blame = "caller"
    help = "Open a producer or consumer under a new channel number."


class VerbUnknown(DanubeError):
    """No such request."""

    code = "verb_unknown"
    blame = "caller"
    help = "Use a client of the broker's version."


class RequestInvalid(DanubeError):
    """A request that lacks something, or has something of the wrong type."""

    code = "request_invalid"
    blame = "caller"
    help = "Correct what the message names."


# -- native protocol -------------------------------------------------------------------------------------------------


class ProtocolError(DanubeError):
    """The client sent bytes, or wanted to, that the native protocol does not allow. The connection ends."""

    code = "protocol_error"
    blame: ClassVar[Blame] = "caller"  # of its subclass it is not
    help = "Use a client of the broker's version, and check that the port is the broker's."


class BrokerProtocolError(ProtocolError):
    """The broker sent bytes, or wanted to, that the native protocol does not allow. The connection ends."""

    code = "broker_protocol_error"
    blame = "server"
    help = "Check that the address is a broker's, and that broker and client are of one version."


# -- clients ---------------------------------------------------------------------------------------------------------


class ProducerBusy(DanubeError):
    """The producer holds as many bytes that are not acknowledged as it may."""

    code = "producer_busy"
    blame = "environment"
    retriable = True
    help = "Wait with `await producer.ready()`, then send again."


class ConnectionLost(DanubeError):
    """The connection went away. What was asked and not answered may or may not have happened."""

    code = "connection_lost"
    blame = "environment"
    retriable = True
    help = "Check that the broker runs and that the network reaches it; the client connects again by itself."


class ClientClosed(DanubeError):
    """This client, or this producer, consumer or reader of it, was closed by its own program."""

    code = "client_closed"
    blame = "caller"
    help = "Open a new one."


class AddressInvalid(DanubeError):
    """Text that is no address of a broker."""

    code = "address_invalid"
    blame = "caller"
    help = "Write it as danube://host:port, or danubes://host:port for TLS."


class NothingReceived(DanubeError):
    """No message came within the time given."""

    code = "nothing_received"
    blame = "environment"
    retriable = True
    help = "Wait longer, or ask `explain` why nothing is delivered."


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


def error_table() -> dict[str, type[DanubeError]]:
    """Every error by its code."""
    table: dict[str, type[DanubeError]] = {}
    pending = [DanubeError]
    while pending:
        kind = pending.pop()
        table[kind.code] = kind
        pending.extend(kind.__subclasses__())
    return table
