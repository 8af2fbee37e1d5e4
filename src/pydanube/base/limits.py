"""A bound on everything that input can make grow, and units. The unit comes last in a name, the reason beside it."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
MILLISECOND = 1_000  # times are whole microseconds; a name that ends in SECONDS is a number of seconds
SECOND = 1_000 * MILLISECOND
DAY = 24 * 3600 * SECOND

# -- wire ------------------------------------------------------------------------------------------------------------
FRAME_BYTES_MAX = 16 * MIB  # one frame fits the socket buffer pool; larger batches are split by the client
BATCH_BYTES_MAX = FRAME_BYTES_MAX - 4 * KIB  # a batch and its command fit one frame
BATCH_RAW_BYTES_MAX = BATCH_BYTES_MAX  # a batch never unpacks to more bytes than could be sent without compression
BATCH_MESSAGES_MAX = 1 << 17  # the index arrays of one batch stay below 1 MiB
BATCH_ATTRIBUTES_MAX = 1 << 20  # of all messages of a batch; keeps the decoded size in proportion to its bytes
ATTRIBUTES_CHECKED_BYTES_MAX = 128 * KIB  # of a batch at publish, a few milliseconds; the rest when read
KEY_BYTES_MAX = 4 * KIB  # a key is a name; it is hashed, and compared with filters byte by byte
OFFSET_MAX = (1 << 62) - 1  # base + count never overflows a signed 64-bit column

# -- journal ---------------------------------------------------------------------------------------------------------
BLOCK_BYTES = 4 * KIB  # groups start on a block, so a torn write never touches what was synced before
JOURNAL_FILE_BYTES = 128 * MIB  # one file per second at full speed; recovery scans only one file without an index
JOURNAL_FILE_BYTES_MIN = 16 * BLOCK_BYTES
GROUP_BYTES_MAX = 32 * MIB  # a group holds at least one batch of the largest size
GROUP_BYTES_TARGET = 1 * MIB  # a group stops growing here; while it is written, a single producer fills the next one
GROUP_ENTRIES_MAX = 4096  # the directory of a group stays below 256 KiB
GROUP_ENTRIES_TARGET = 1024  # a group stops growing here: packing its entries takes the loop a millisecond or two
CONFIRMED_AT_ONCE = 128  # batches or acks of a log in one turn of the loop: twenty microseconds each, with what follows
JOURNAL_PENDING_BYTES_MAX = 64 * MIB  # appends waiting for the journal; beyond it NodeBusy
GROUPS_WAITING_MAX = 128  # groups queued before the journal; beyond it control records are refused with NodeBusy
MARK_IDLE_SECONDS = 0.25  # after this time, an idle journal writes a mark that covers its last group
NODE_FILES_MAX = 1 << 16  # journal and kept files of one node: 8 TiB of the usual size, 768 KiB of list
DATA_DIRECTORIES_MAX = 32  # bits in a ledger's record of the directories that hold parts of it
NODE_LEDGERS_MAX = 1 << 19  # ledgers of one node; 24 MiB of checkpoint at each roll
NODE_LEDGERS_RESERVED = NODE_LEDGERS_MAX // 16  # of them for acks and deletions, which let other ledgers go
NODE_LEDGERS_WARN = NODE_LEDGERS_MAX * 4 // 5  # from here on the operator is warned, months before the limit
RETENTION_STEPS = 16  # a topic with little traffic divides its retention into this many ledgers
OFFSETS_OF_A_LEDGER_MAX = 1 << 40  # more than its bytes can hold; skipped if the end of a ledger is lost with its disk
DAMAGE_LOGGED_MAX = 10_000  # damaged ranges that a broker remembers, so that it does not log them again
LOST_RANGES_MAX = 1_000  # of one stream, given up as damaged; its record stays small enough for the metadata
RESERVE_OFFSETS = 1 << 20  # offsets that a buffered ledger reserves at a time (one sync per million messages)

# -- room on the disk ------------------------------------------------------------------------------------------------
ROOM_RESERVE_FILES = 3  # journal files: one for acks, its successor, and one for copying data out
ROOM_RESERVE_METADATA_BYTES = 16 * MIB  # two metadata files of the usual size and their successors
ROOM_CHECK_SECONDS = 0.25  # between checks of the disk; what is published in between is counted

# -- copies ----------------------------------------------------------------------------------------------------------
WRITER_WAITING_BYTES_MAX = 32 * MIB  # of one ledger, not confirmed yet; half of what may wait for a journal
WRITER_LAG_BYTES_MAX = 64 * MIB  # how far one copy may fall behind the others before the writer continues without it
CALL_SECONDS = 5.0  # a storage node that has not answered by then counts as unreachable
RECOVERY_AHEAD_BYTES = 4 * MIB  # entries that a recovery has read and sent before their ack quorum has answered
CALLS_WAITING_MAX = 65_536  # requests of one process in flight to remote nodes; beyond it NodeBusy

MEMORY_NODE_BYTES = 256 * MIB  # memory for batches in a memory node; beyond it NodeBusy

# -- reading ---------------------------------------------------------------------------------------------------------
READ_BYTES_MAX = 32 * MIB  # of one answer to a range read; holds at least one batch of the largest size
READS_AT_ONCE_MAX = 16  # reads of one node that hold an answer in memory
READS_WAITING_MAX = 4096  # reads in progress or waiting for their turn; beyond it NodeBusy
INDEX_CACHE_BYTES = 16 * MIB  # loaded indexes of closed files; the least recently used are dropped

# -- cursors and dedup -----------------------------------------------------------------------------------------------
CURSOR_CHUNK_OFFSETS = 2048  # one bitmap: 256 bytes, so setting a bit copies little, and a million acks need few
CURSOR_CHUNKS_MAX = 32_768  # of one cursor: 8 MiB, 67 million offsets above the floor; beyond it dispatch pauses
ACK_RANGES_MAX = 4096  # in one record: 64 KiB
SUBSCRIPTIONS_MAX = 4096  # of one topic; each keeps a cursor in memory
NAME_BYTES_MAX = 255  # of a subscription or producer; its length is one byte
SUBSCRIPTION_OPTIONS_BYTES_MAX = 64 * KIB  # they are kept in memory and in every snapshot
STATE_RECORD_BYTES_MAX = 256 * KIB  # a snapshot is split into records, so that nothing waits long behind one
PRODUCERS_MAX = 4096  # names remembered by one topic, 8 MiB with their windows; as many again without a name
DEDUP_WINDOW_BATCHES = 128  # per producer: more than a client has in flight, so a resend finds its offset
PRODUCER_IDLE_SECONDS = 7 * 24 * 3600  # a name that published or attached since then is never forgotten
PRODUCER_AWAY_SECONDS = 3600  # how long a temporary producer may return after losing its connection
PRODUCERS_FORGOTTEN_MAX = 256  # at once: forgetting is rare, and what is remembered is worth keeping
CLOCK_JUMP_SECONDS = 60  # difference of wall and monotonic clock; a slewed clock stays far below it
CLOCK_DISTRUST_SECONDS = 3600  # of monotonic time without deletions by time; enough for an operator to react
CLOCK_AHEAD_DAYS = 30  # of the clock at startup over the newest message: it may be wrong, or the broker was off
CLOCK_HELD_SECONDS = 60  # a jump ahead that is corrected sooner affects no message; later it looks like the truth
TIME_CORRECTIONS_MAX = 16  # kept in a stream's record; each needs an hour to be certain

# -- dispatch --------------------------------------------------------------------------------------------------------
CONSUMERS_MAX = 1_000  # of one subscription; 100,000 points on a Key-Shared ring
PERMITS_MAX = 1_000_000  # of one consumer; more would only hide a client that never processes messages
UNACKED_MAX = 100_000  # the largest window of one subscription; its records stay below about 30 MB
UNACKED_DEFAULT = 10_000
TAKEN_MESSAGES_MAX = 10_000  # in one notice of what a program has taken: a few milliseconds of the event loop
LOOKAHEAD_MESSAGES_MAX = 100_000  # queued behind blocked keys of one Key-Shared subscription
LOOKAHEAD_MESSAGES_DEFAULT = 10_000
DELAYED_MESSAGES_MAX = 1_000_000  # in the delay index of one Shared subscription; about 200 MB when full
DELAYED_MESSAGES_DEFAULT = 100_000
NACKED_AT_ONCE = 512  # messages of one subscription in one turn of the loop, a few milliseconds; others wait
ACKED_AT_ONCE = 4_096  # the same for one range; shorter ranges are never split
DECIDED_AT_ONCE = 256  # messages or keys of one subscription in one poll of its engine: a few milliseconds
EXAMINED_AT_ONCE = 512  # messages of one subscription in one turn, for their keys or times: a few milliseconds
DELIVERIES_AT_ONCE = 200  # of one subscription in one turn, each cut out of its batch; others wait
REDELIVERIES_MAX = 1_000  # a message that failed this often will not succeed
DURATION_MICROSECONDS_MAX = 36_500 * DAY  # of any duration that people write; a century fits every clock
POLICY_MICROSECONDS_MAX = DAY  # timeouts and delays of a failure policy: a day
POISON_RETRY_MICROSECONDS_MIN = 100_000  # a dead-letter topic that is down is not asked in a tight loop
POISON_FAILURES_QUIET = 2  # failures to give a message up before the subscription counts as blocked
WARNING_REPEAT_SECONDS = 60.0  # between two log lines about the same problem of a subscription or background loop
ROUND_FAILED_PAUSE_SECONDS = 1.0  # of a background loop after a failed round, so that a lasting fault costs little
REASON_CHARACTERS_MAX = 1_000  # of why a message failed; stored as an attribute of the dead letter
FILTERS_MAX = 16  # key filters of one consumer; a new key is compared with all of them
FILTER_BYTES_MAX = 256  # of one key filter
FILTERS_BYTES_MAX = 64 * KIB  # of one subscription, equal ones once; matching the longest key takes about 10 ms
KEYS_AT_ONCE_BYTES = 64 * KIB  # of keys in one turn; proportionally less with more than a KiB of filters
OWNER_CACHE_KEYS_MAX = 65_536  # keys whose consumer is remembered until the ring changes
OWNER_CACHE_BYTES_MAX = 16 * MIB  # of these keys
IDLE_KEY_BYTES_MAX = 256  # longer keys are forgotten when none of their messages is left

# -- topics ----------------------------------------------------------------------------------------------------------
TAIL_CACHE_BYTES = 256 * MIB  # memory for the newest batches of all topics of a broker
READ_AHEAD_BYTES = 1 * MIB  # one read for a subscription that is behind the cache
BATCHES_READ_AT_ONCE = 128  # in one answer: each takes the loop about ten microseconds, where a MiB may have 9,000
READ_AHEAD_ALL_BYTES_MAX = 256 * MIB  # memory for such reads of all subscriptions of a broker
STATE_QUEUE_RECORDS_MAX = 65_536  # state records of one topic on their way to its log; beyond it TopicBusy
STATE_AMID_SNAPSHOT_RECORDS_MAX = 1 << 20  # written between the parts of one snapshot; a restart holds them in memory
STATE_COMPACT_BYTES = 1 * MIB  # of state log since the last snapshot; a restart reads little more than this
HEADERS_REPLAYED_BYTES_MAX = 256 * MIB  # of messages since the last snapshot, read after a restart to know producers
HEADERS_UNREAD_BYTES = 16 * MIB  # the same for the first producer of a topic; a snapshot for each would cost more
REPEATS_WAITING_MAX = 65_536  # resent batches of one topic whose first copy is unconfirmed; beyond it TopicBusy

# -- broker ----------------------------------------------------------------------------------------------------------
TOPIC_NAME_CHARACTERS_MAX = 255  # of the full name of a topic, and of a namespace
PARTITIONS_MAX = 1024  # of one topic
PARTITIONS_AT_ONCE = 32  # of one topic, opened or changed at a time; other work gets its turn in between
NAMESPACES_MAX = 10_000
STREAM_TAKE_SECONDS = 30.0  # limit of one attempt to open a stream, which occupies one of TOPICS_OPENING_MAX
TOPICS_OPENING_MAX = 64  # topics that are opened at once; others wait their turn
TOPICS_REOPENING = 4  # of these, topics that are reopened at startup without a request, so that requests wait little
TOPICS_RESUMING = 4  # topics whose interrupted changes are finished at once after startup, in addition
TOPIC_CHANGES_KEPT = 16_384  # changes of topics that a broker remembers for clients that watch; about 3 MiB
TOPIC_CHANGES_LISTED_MAX = 200  # topics in one answer, which must fit a control frame; if more changed, it names none
TOPIC_WATCH_NAMESPACES_MAX = 200  # in one request, which must fit a control frame; a client with more watches all
TOPIC_WATCHERS_MAX = 20_000  # requests that wait for a change at a time; beyond it TopicBusy
NEWS_PARTITIONS_MAX = 1_000  # partitions that one request waits for; each is a task
NEWS_SECONDS_MAX = 5.0  # that such a request waits; less than a client waits for an answer
TOPIC_WATCH_SECONDS_MAX = 20.0  # that such a request waits; less than a client waits for an answer
UNUSED_SUBSCRIPTION_SECONDS = 60  # without a consumer, until a subscription of a topic that stores nothing is deleted
HOUSEKEEPING_TURNS = 8  # topics in housekeeping at a time; most of it waits for a disk
TOPICS_LOOKED_AT_AT_ONCE = 200  # in one turn of the loop, for what is due: four microseconds each
HOUSEKEEPING_TURN_SECONDS = 0.5  # after which the next topic gets its turn, and the slow one continues beside it
HOUSEKEEPING_SLOW_TURNS_MAX = 1_000  # such slow topics; each may hold a batch that it reads
REQUESTS_AT_ONCE_MAX = 256  # requests of one connection in progress; beyond it TopicBusy
REFUSALS_NAMED_MAX = 10  # dead letters that their topic refused: so many are named, the others counted
REDRIVE_LETTERS_MAX = 2_000  # that one request examines, matching or not, so that it is answered in time
LISTED_MAX = 500  # names in one answer; the next request continues after the last of them
UNREADABLE_OFFSETS_MAX = 16  # that a subscription remembers: the next ones, and those to deliver again
DAMAGE_NOTICE_SECONDS = 5  # between two notices of damage to a consumer, which may have missed the first
BLOCKED_LISTED_MAX = 50  # blocked or abandoned subscriptions in one answer; more usually have the same cause
ABANDONED_SECONDS = 3 * 24 * 3600  # age of the oldest message of a subscription without consumers; over a weekend
LISTED_BYTES_MAX = 48 * KIB  # of them, so that the answer fits a control frame
EXPLAINED_IN_WORDS_MAX = (
    5  # partitions that the summary of an explanation names, for the same reason; others are counted
)
TROUBLES_LISTED_MAX = 20  # of a topic's partitions in one answer, for the same reason; more usually have one cause
CHANNELS_MAX = 20_000  # producers and consumers of one connection
CONNECTIONS_MAX = 20_000  # of one broker
HELLO_SECONDS = 5.0  # a connection that has not sent its hello by then is closed
SEND_BUFFER_BYTES_MAX = 1 * MIB  # waiting for a slow reader; its consumers get no more until it reads
SEND_BUFFERS_BYTES_MAX = 512 * MIB  # of all connections that do not read; beyond it the longest silent one is closed

# -- policies --------------------------------------------------------------------------------------------------------
RATE_DEBT_SECONDS_MAX = 2  # publishes beyond the rate are answered about this late at most; more is RateExceeded
ANSWERS_HELD_MAX = 65_536  # of one topic, delayed by its publish rate; beyond it RateExceeded
UNCONFIRMED_BYTES_MAX = 512 * KIB  # on the way to the journal, of all connections; new publishes wait behind them
UNCONFIRMED_ALONE_BYTES_MAX = 4 * MIB  # the same if only one connection publishes, so that no one waits behind it
UNCONFIRMED_BYTES_MIN = 64 * KIB  # what one connection may have on the way, however many there are

# -- native protocol -------------------------------------------------------------------------------------------------
HELLO_FRAME_BYTES_MAX = 4 * KIB  # before WELCOME the client is unknown, and ten thousand may be sending a hello
CONTROL_BYTES_MAX = 64 * KIB  # the body of a control frame, which is decoded on the event loop
FRAME_BYTES_MIN = 128 * KIB  # the lowest limit that a broker may announce: a control frame, or a batch worth sending
REQUEST_VALUES_MAX = 8_192  # of a request: a control frame could hold thousands of numbers, each of which takes time
JSON_OBJECTS_MAX = 4_096  # of a request: a thousand messages with attributes have half as many
JSON_DEPTH_MAX = 16  # of a control frame; far below what a stack allows
VERB_BYTES_MAX = 64
KEEPALIVE_SECONDS_MAX = 3600  # a peer that is gone is noticed within two hours at the latest
FEATURES_MAX = 64  # named in one hello or welcome
FEATURE_BYTES_MAX = 64
FRAMES_UNFINISHED_BYTES_MAX = 256 * MIB  # of all connections; beyond it the oldest incomplete frame is dropped
REASON_BYTES_MAX = 1_000  # of why a message failed, on the wire
ERROR_MESSAGE_CHARACTERS_MAX = 500  # so that an error fits a frame before WELCOME, however its text is escaped

# -- clients ---------------------------------------------------------------------------------------------------------
PRODUCER_BUFFER_BYTES = 64 * MIB  # of one producer, queued or sent but not acknowledged; beyond it sends wait
PRODUCER_QUEUE_BYTES_MAX = 64 * MIB  # of waiting sends that no one awaits; beyond it ProducerBusy
PRODUCER_BATCH_BYTES = 256 * KIB  # a batch is sent at this size; large enough to share its fixed costs
PRODUCER_BATCH_MESSAGES = 4_000  # or at this number of messages
PRODUCER_IN_FLIGHT_BATCHES_MAX = 120  # unanswered, of one partition; fewer than the broker remembers for resends
MESSAGE_OVERHEAD_BYTES = 64  # what a message without a payload counts, so that empty ones are limited too
KEY_MEMO_KEYS_MAX = 32_768  # keys whose hash a process remembers, about 8 MiB; hashing one takes a microsecond
KEYS_HASHED_AT_ONCE_BYTES = 16 * KIB  # in one turn of the loop, one or two milliseconds
KEY_MEMO_BYTES_MAX = 128  # longer keys are hashed each time
CONSUMER_PREFETCH_MESSAGES = 10_000  # on the way to one consumer of one partition
CONSUMER_PREFETCH_BYTES = 64 * MIB  # waiting in a consumer for its program, for all its partitions
GRANTED_BYTES_MAX = (1 << 32) - 1  # with one GRANT
CLIENT_ACKS_KEPT_GROUPS_MAX = 1_000  # acks of one partition that wait for a connection, in groups of one frame
CLIENT_POSTPONED_RANGES_MAX = 10_000  # delayed nacks of one partition that outlive a connection; the oldest are lost
CLIENT_ACK_RANGES = 1_000  # combined in one frame; a quarter of what a record may have
CLIENT_REQUESTS_MAX = 65_536  # of one connection, unanswered; beyond it requests are refused
CLIENT_REQUESTS_AT_ONCE = 200  # of them are sent, the rest wait their turn; fewer than REQUESTS_AT_ONCE_MAX

# -- metadata --------------------------------------------------------------------------------------------------------
METADATA_OPERATIONS_MAX = 128  # checks and changes of one transaction; etcd's limit
METADATA_KEY_BYTES_MAX = 1024
METADATA_TRANSACTION_BYTES_MAX = 1 * MIB  # of all changes; within the request size that etcd accepts, 1.5 MiB
METADATA_VALUE_BYTES_MAX = METADATA_TRANSACTION_BYTES_MAX - 64 * KIB  # so that other changes fit beside the largest
METADATA_ATTEMPTS_MAX = 10_000  # of one change; each conflict means that another one was made, so all get their turn
METADATA_KEYS_MAX = 1 << 20  # all of them are in memory, sorted
METADATA_BYTES_MAX = 256 * MIB  # of keys and values together; startup reads all of it and a snapshot writes it
METADATA_RESERVE_BYTES = 16 * MIB  # beyond the limit, for ledgers of existing streams, so that topics can be trimmed
METADATA_RESERVE_KEYS = METADATA_KEYS_MAX // 16  # the same in keys
METADATA_LONGER_BYTES = 64  # by which a value may always grow, because deletions write numbers too
METADATA_WAITING_BYTES_MAX = 32 * MIB  # transactions on their way to the log; beyond it MetadataBusy
METADATA_GROUP_TRANSACTIONS_MAX = 512  # in one write; applying them takes one turn of the loop, a few milliseconds
METADATA_LOG_BYTES = 4 * MIB  # of log before a new file with a snapshot; startup replays little more than this
METADATA_SNAPSHOT_KEYS = 512  # encoded at a time, so that no turn of the loop is long
METADATA_SNAPSHOT_PART_BYTES = 256 * KIB  # that go to another node at a time; heartbeats go between its frames
METADATA_SNAPSHOT_BYTES_MAX = 512 * MIB  # a full store with what its rows and sessions need besides keys and values
METADATA_ANSWER_SECONDS_MAX = 10.0  # for a leader to be found, asked, and its answer; beyond it MetadataUnavailable
METADATA_REQUESTS_MAX = 4096  # that wait for the leader's answers, and that a leader serves; beyond it MetadataBusy
METADATA_REQUESTS_BYTES_MAX = 16 * MIB  # of them, half of what may wait for a peer
METADATA_REQUESTS_KNOWN = 2 * METADATA_REQUESTS_MAX  # numbers by which a leader knows a request that comes twice
WATCHES_MAX = 1024  # of one store; each change is compared with all of them
WATCH_CHANGES_MAX = 16_384  # waiting for one watcher; beyond it WatchLagged
SESSIONS_MAX = 65_536  # of one store; each has a timer
SESSION_ANSWERS_MAX = 1024  # transactions of a session whose answers may be asked for again
SESSION_SECONDS_MAX = 24 * 3600.0
LEDGERS_LISTED_MAX = 128  # in a stream's record, about 26 KiB; beyond it the older half moves to its own key
LEDGERS_SWEPT_MAX = 1024  # deleted from the nodes before the stream's record forgets them
LEDGER_PAGES_CHANGED_MAX = 24  # by one change of a stream's record, so that all of them fit one transaction
LEDGERS_DELETED_AT_ONCE = 32  # of one stream, on their way to the nodes; fewer than GROUPS_WAITING_MAX
LEDGER_ID_BLOCK = 64  # ids taken at a time, so that a new ledger needs one metadata write, not two

# -- between nodes ---------------------------------------------------------------------------------------------------
PEER_FRAME_BODY_BYTES_MAX = 64 * KIB  # longer messages are sent in parts of this size, so that urgent ones get between
PEER_MESSAGE_BYTES_MAX = FRAME_BYTES_MAX  # a batch of the largest size, or a transaction, with what is said about it
PEER_HELLO_BYTES_MAX = 256  # before a node has proved that it knows the secret; later versions may say more in a hello
PEER_SECRET_BYTES_MIN = 16  # a shorter secret can be guessed by one who has seen a greeting
PEER_SECRET_BYTES_MAX = 4 * KIB
PEER_QUEUE_BYTES_MAX = 32 * MIB  # that wait for one peer, two messages of the largest size; what is more is dropped
PEER_QUEUE_MESSAGES_MAX = 16_384  # of them
PEER_URGENT_BYTES_MAX = 256 * KIB  # of urgent messages that wait for one peer; a heartbeat has less than 100
PEER_URGENT_MESSAGES_MAX = 1024  # of them
PEER_ERROR_TEXT_BYTES_MAX = 4 * KIB  # what a node says about an error; the rest is cut off
PEER_WRITE_BUFFER_BYTES = 128 * KIB  # in the transport, and again in the system, in front of an urgent message
PEER_PING_SECONDS = 1.0  # between pings on a link
PEER_SILENT_PINGS = 3  # intervals in a row without a byte, after which the other side counts as gone
PEER_RETRY_SECONDS_MIN = 0.05  # after a failed attempt to connect; twice as long after each further one
PEER_RETRY_SECONDS_MAX = 1.0  # about as long as an election takes
PEER_LINKS_MAX = 1024  # from other nodes, more than a cluster has
PEER_WRITTEN_PER_TURN = 256 * KIB  # to one peer in one turn of the loop, so that the others get theirs
PEER_COMPLAINTS_MAX = 256  # sentences about peers that are remembered, so that they are not logged each second
PEER_GREETING_MAX = 64  # connections that have not proved anything yet; beyond it the oldest is closed

# -- configuration, TLS and keepalive --------------------------------------------------------------------------------
CONFIG_FILE_BYTES_MAX = 64 * KIB  # a longer file is not a configuration
CONNECTIONS_GREETING_MAX = 4_096  # that have not sent their hello; beyond it the oldest is closed
CONNECTIONS_LINGERING_MAX = 64  # refused connections that still wait for their error; fit into FILES_RESERVED
LINGER_SECONDS = 1.0  # for their first bytes, which show which protocol the error must use
REFUSED_HANDSHAKES_MAX = 32  # in that time: a refusal over TLS costs about a millisecond of the loop
FILES_RESERVED = 512  # file descriptors that connections leave to the journal and everything else
KEEPALIVE_SECONDS = 30  # of silence before the broker sends a ping; it closes the connection after twice that
SWEEP_CONNECTIONS = 32  # checked in one turn, so that ten thousand idle ones never cost more than a moment
ADDRESS_BYTES_MAX = 300  # a host of 253 and a port, with room for brackets and a zone
CERTIFICATE_CHECK_SECONDS = 5.0  # between checks whether the certificate files have changed

# -- turns of the loop -------------------------------------------------------------------------------------------------
TURN_SECONDS = 0.001  # that connections process what they received before the loop serves others
QUANTUM_SECONDS = 0.0005  # that one connection may add to each turn: a read of 256 KiB of large batches fits in it
ALONE_TURNS = 32  # without another connection, after which one may use whole turns: larger portions cost less
DEBT_SECONDS_MAX = 0.002  # that it may have used beyond that: it is served again in the fifth turn at the latest
BYTE_SECONDS = 1e-9  # that a received byte counts: it is read, written to the journal and sent on, about 1 GB/s
REQUESTS_BEGUN_PER_TURN = 4  # of all connections: most take a tenth of a millisecond, a large answer several
FRESH_SECONDS = 0.002  # the same for connections that are not behind: 64 calls of one read are served together
ACCEPTED_AT_ONCE = 16  # connections in one turn: each takes a tenth of a millisecond
HANDSHAKES_BEGUN_PER_TURN = 4  # of TLS: a fifth of a millisecond each, before any computation
TLS_READ_BYTES = 256 * KIB  # of a socket at once, before decryption; as much as without TLS
TLS_RECORDS_AT_ONCE = 64  # of them between two checks of the clock: as many key updates take half a millisecond
FRAMES_CUT_AT_ONCE = 256  # out of received data: a tenth of a millisecond, where one read may have 13,000
FRAMES_AT_ONCE = 32  # of the native protocol, between two checks of the clock
FRAMES_AT_ONCE_BYTES = 16 * KIB  # the same in bytes: a larger frame of acks takes a millisecond
RANGES_AT_ONCE = 128  # of one frame of acks, likewise
HTTP_CHUNKS_AT_ONCE = 256  # of a body, likewise
GRPC_MESSAGES_AT_ONCE = 32  # of one stream, likewise
DECODED_BYTES = 1 * MIB  # unpacked, of a batch that is decoded on the loop; larger ones are decoded in a thread
DECODED_ATTRIBUTES_BYTES = 64 * KIB  # the same for its attributes, each of which becomes an object
DECODED_MESSAGES = 4_096  # the same for its messages
LZ4_FRONT_BYTES_MAX = 4 * KIB  # unpacked in Python to read sizes: at most a thousand steps, a millisecond
LZ4_JUDGED_BYTES_MAX = 2 * MIB  # of an lz4 batch with more messages than fit there: it is unpacked as a whole

# -- HTTP/2 ----------------------------------------------------------------------------------------------------------
HTTP2_STREAMS_MAX = 1024  # open at once on one connection; each consumer of a client uses one
HTTP2_HEADER_LIST_BYTES_MAX = 12 * KIB  # announced, more than most gRPC servers do; a request with more is reset
HTTP2_HEADER_LIST_BYTES_READ = 16 * KIB  # decoded at most, in a few milliseconds; beyond it the connection is closed
HTTP2_HEADER_BLOCK_BYTES_MAX = 16 * KIB  # of one HEADERS with its CONTINUATIONs, before it is decoded
HTTP2_CONTINUATIONS_MAX = 16  # of one header block; empty ones could otherwise continue forever
HTTP2_HEADER_BYTES_PER_WORK = 16  # of a block to decode: costs as much as a frame, about 5 µs
HTTP2_DATA_BYTES_PER_WORK = 256  # of a body, which may consist of messages of five bytes
HTTP2_WORK_AT_ONCE = 64  # frames, or as much work: one or two milliseconds between two checks of the clock
HTTP2_HEADER_TABLE_RESIZES_MAX = 2  # at the start of one block; RFC 7541 (4.2) has no use for more
HTTP2_HEADER_MEMO_BLOCKS_MAX = 64  # blocks of one connection whose headers are remembered: one per method and metadata
HTTP2_HEADER_MEMO_BLOCK_BYTES_MAX = 512  # longer blocks are decoded each time
HTTP2_CONNECTION_WINDOW_BYTES = 16 * MIB  # given back on receipt; the windows of the streams bound what is held
HTTP2_RESERVED_BYTES_MAX = 32 * MIB  # given to streams of one connection beyond their first 64 KiB; others wait
HTTP2_STREAM_QUEUE_BYTES_MAX = 256 * KIB  # of one stream, waiting for a slow reader; one message may exceed it
HTTP2_QUEUE_BYTES_MAX = 16 * MIB  # of all streams of a connection; one message may exceed it
HTTP2_STREAMS_FORGOTTEN_MAX = 1024  # that we ended and the client may not know about; their late frames are ignored
HTTP2_RESETS_MAX = 4 * HTTP2_STREAMS_MAX  # at once: a client that leaves may cancel everything it has
HTTP2_RESETS_PER_SECOND = 1_000  # of streams, by the client or for its errors; beyond it the connection is closed
HTTP2_IDLE_FRAMES_MAX = 10_000  # PING, SETTINGS, PRIORITY, empty and unknown frames at once; they carry nothing
HTTP2_IDLE_FRAMES_PER_SECOND = 1_000
GRPC_MESSAGE_BYTES_MAX = 4 * MIB  # of a message to a client; what every gRPC peer accepts by default
GRPC_REQUEST_BYTES_MAX = GRPC_MESSAGE_BYTES_MAX - 1 * KIB  # delivery adds an offset, a time and an address
GRPC_STATUS_MESSAGE_BYTES_MAX = 1 * KIB  # up to three times as long when escaped; it is sent as a header

# -- HTTP/1, REST and metrics ----------------------------------------------------------------------------------------
HTTP_LINE_BYTES_MAX = 8 * KIB  # a request line: a path of names, each at most 255 bytes and three times that escaped
HTTP_HEAD_BYTES_MAX = 16 * KIB  # request line and headers
HTTP_HEADERS_MAX = 64  # of one request; a browser sends about twenty
HTTP_CHUNK_LINE_BYTES_MAX = 256  # size and extensions of one chunk
HTTP_BODY_BYTES_MAX = 1 * MIB  # decoded in one turn of the loop; use the native protocol for more
HTTP_BODIES_BYTES_MAX = 64 * MIB  # of all requests being received; beyond it HttpBusy
HTTP_PIPELINED_BYTES_MAX = 64 * KIB  # of pipelined requests that wait behind the current one; beyond it, reading stops
HTTP_REQUEST_SECONDS = 20.0  # from the first byte of a request to its last; the largest body at 50 KiB/s
HTTP_LINGER_SECONDS = 1.0  # for a refused client to read the answer; what it still sends is ignored
HTTP_REQUESTS_MAX = 1_000  # in progress at a time, of all connections; beyond it HttpBusy
HTTP_QUERY_FIELDS_MAX = 16
HTTP_JSON_BYTES_MAX = 512 * KIB  # of messages as JSON: a few milliseconds of the loop
HTTP_JSON_VALUES_MAX = 20_000  # in one body, which must not consist only of tiny values
PUBLISHED_MESSAGES_MAX = 1_000  # in one request over HTTP; each becomes an object on the loop
PEEKED_MESSAGES_MAX = 1_000  # in one answer
PEEKED_BYTES_MAX = 1 * MIB  # of their values; one message may exceed it
PEEKED_VALUE_BYTES_MAX = 256 * KIB  # of one message; a longer value is cut, and marked as such
PEEK_WAIT_SECONDS_MAX = 20.0  # less than proxies wait
WAITING_REQUESTS_MAX = HTTP_REQUESTS_MAX // 2  # that wait for messages; the others are left for quick requests
LEASES_MAX = 100_000  # of messages received over HTTP, of one broker: about 50 MiB
LEASES_AT_ONCE_MAX = 1_000  # in one request to receive, acknowledge, fail or extend
LEASE_SECONDS_MAX = 12 * 3600  # longer work should be a job of its own
RECEIVED_BYTES_MAX = 1 * MIB  # of the values in one answer; one message may exceed it
METRIC_TOPICS_MAX = 500  # topics with their own samples; the others are summed up under `_other`
METRIC_SUBSCRIPTIONS_MAX = 1_000  # the same for subscriptions
METRICS_KEPT_SECONDS = 1.0  # a page is served again for this long, so that many scrapes cost nothing
LEDGERS_A_TURN = 1_000  # examined in one turn of the loop, a few hundred microseconds
TOPICS_A_TURN = 250  # listed over gRPC in one turn of the loop, a millisecond
TOPICS_READ_A_TURN = 100  # records of metadata, decoded for a list in one turn: two milliseconds
SUBSCRIPTIONS_A_TURN = 50  # described for a list in one turn, each in one partition: three milliseconds
METRIC_SLICE = 50  # topics examined in one turn of the loop, a few hundred microseconds
METRIC_READS_MAX = 32  # of storage in one scrape, for the age of backlogs that are not in memory
AGE_READS_MAX = 100  # the same in one answer about subscriptions: about ten milliseconds

# -- gRPC face -------------------------------------------------------------------------------------------------------
GRPC_BODIES_BYTES_MAX = 128 * MIB  # of all requests being received; beyond it HttpBusy
GRPC_ANONYMOUS_BYTES_MAX = (
    4 * KIB
)  # of a request of a caller without a token, where one is needed: it may ask for health
GRPC_BODY_SECONDS = 60.0  # from the first byte of a request to its last; the largest at 70 KiB/s
GRPC_FIELDS_MAX = 1_024  # of a request, counting each attribute of a message; decoding 380,000 would take seconds
GRPC_COALESCED_BYTES = 1 * MIB  # of messages that arrive in one read and become one batch
GRPC_COALESCED_MESSAGES = 1_000  # of them
GRPC_UNACKED_DEFAULT = 10  # window of a subscription created here: clients queue it while its ack timeout runs
GRPC_CONSUMERS_REMEMBERED_MAX = 10_000  # of one broker, so that they continue after a restart; the oldest are forgotten
GRPC_REFUSAL_SECONDS = 0.2  # before an unknown consumer gets its error: some clients ask again at once, forever
GRPC_GOODBYE_SECONDS = 0.4  # for calls in progress when the connection is to end
GRPC_CLOSE_SECONDS = 6.0  # between CLOSE in a health check, which comes every 5 s, and the end of a stream
GRPC_OPTIONS_PENDING_MAX = 1_000  # options of subscriptions that do not exist yet, in all or in some partitions
RECORD_BYTES_MAX = 16 * KIB  # of what a client has a broker remember in the metadata under one key

# -- authentication and roles ----------------------------------------------------------------------------------------
TOKEN_BYTES_MAX = 3 * KIB  # fits into the first frame of a native connection, which may have 4 KiB
TOKEN_SECRET_BYTES_MIN = 32  # a shorter secret could be guessed from one token; RFC 7518 asks for as much
TOKEN_SECRET_BYTES_MAX = 4 * KIB  # of the file with it
TOKENS_KNOWN_MAX = 10_000  # tokens whose check is remembered: about 3 MB
TOKEN_SECONDS_NOTED_MAX = 86_400  # different seconds at which known tokens expire: one day of them, about 4 MB
JWKS_BYTES_MAX = 256 * KIB  # of a key set: a hundred times a usual one
JWKS_KEYS_MAX = 32  # of a key set; a token without a key's name is tried with all of them
KEYS_RELOAD_SECONDS = 60.0  # between two looks at the secret and the key set
KEYS_FETCH_SECONDS = 10.0  # until a server of key sets counts as not answering
AUTH_FAILURES_MAX = 20  # wrong tokens of one address at once; afterwards it has to wait
AUTH_FAILURES_PER_SECOND = 1.0  # that an address may send beyond those
AUTH_ADDRESSES_MAX = 10_000  # whose wrong tokens are counted; the longest unheard are forgotten first
ROLES_MAX = 1_000  # of a cluster; one that changes makes every principal's rights be derived again
BINDINGS_MAX = 100_000  # of a cluster, in the memory of every broker: about 100 MB
ROLES_PER_BINDING_MAX = 32

# -- backup ----------------------------------------------------------------------------------------------------------
BACKUP_CHUNK_BYTES_MAX = 512 * KIB  # read at a time: half a millisecond of the loop, and of the journal's disk
BACKUP_FILES_LISTED_MAX = 400  # in one answer, so that it fits a control frame
BACKUP_SILENCE_SECONDS = 60.0  # after which a silent client counts as gone, and its files may be deleted

# -- cold tier -------------------------------------------------------------------------------------------------------
SMALL_OBJECT_BYTES_MAX = 16 * MIB  # lists of segments and marks, which are read as a whole
SEGMENT_BATCHES_BYTES_MAX = 272 * MIB  # batches of one segment: a ledger of the largest size and one batch
SEGMENTS_LISTED_MAX = 128  # in a stream's record; beyond it the older half moves to an index object
COLD_INDEXES_KEPT = 64  # index objects in memory, of 64 segments each: about 2 MB

# -- writes that happen exactly once ----------------------------------------------------------------------------------
SINK_TEXT_BYTES_MAX = 1 * KIB  # of a query's id, a target or a name
SINK_SOURCE_BYTES_MAX = 30 * KIB  # where an input ends, otherwise its digest; as JSON it fits a frame of 64 KiB
SINK_REPEATS_MAX = 64  # runs that sent the same batch again, and are remembered
SINK_PARTS_MAX = 5_000  # partitions of one batch; their record fits one metadata value
SINK_REFS_MAX = 500_000  # ranges of staged messages in one batch
SINK_WINDOW_BYTES = 1 * MIB  # of staged messages on their way to a partition, for which its other producers wait
SINK_BLOCKED_SECONDS = 30.0  # of failures to write a decided batch, after which it is shown as blocked
SINKS_MAX = 10_000  # writers that a broker remembers; a new one is compared with all of them
FILLED_MAX = 1_000  # writers whose last batch a partition remembers until it is committed; one state record lists them
SINK_KEPT_SECONDS = 90 * 24 * 3600  # that a writer is remembered after its last batch, so that it may repeat it
SINK_KEPT_SECONDS_MIN = 7 * 24 * 3600  # the same if there are too many
STAGED_SECONDS = 24 * 3600  # that staged messages stay without a commit

# -- schemas -----------------------------------------------------------------------------------------------------------
SCHEMA_BYTES_MAX = 30 * KIB  # of a definition; as JSON, where each character may need two, it fits a control frame
SCHEMA_DEPTH_MAX = 64  # of definitions inside each other; what validates them is as deep
SCHEMA_PAYLOAD_DEPTH_MAX = 64  # of a record inside itself, in a payload of a schema that refers to itself
SCHEMA_REFERENCES_MAX = 32  # of one definition to versions of other subjects
SCHEMA_SOURCES_MAX = 128  # definitions that one needs, directly and through others
SCHEMA_STEPS_MAX = 20_000  # pairs of types in one comparison; about a tenth of a second
SCHEMA_EXPANDED_MAX = 2_000  # subschemas that a JSON Schema applies to one value; they are checked for each payload
SCHEMA_BREAKS_MAX = 60  # places named in one answer, so that it fits a control frame; the last one counts the others
SCHEMA_BREAKS_KEPT_MAX = 500  # of two types; a type that is used twice inside another doubles its own
SCHEMA_BREAK_CHARACTERS_MAX = 200  # of a path and of a reason in it
SCHEMA_REGEX_BYTES_MAX = 256 * KIB  # of memory for one compiled regular expression
SCHEMA_VERSIONS_MAX = 250  # of one subject; a registration reads all of them, in a few milliseconds
SCHEMAS_LISTED_MAX = 100  # subjects or versions in one answer; each is read with its definition
SCHEMA_RECORD_BYTES_MAX = 60 * KIB  # of a version with its references and its description; it fits a control frame
SCHEMA_SUBJECTS_MAX = 20_000  # each has at least two records in the metadata
SCHEMA_TEXT_BYTES_MAX = 1 * KIB  # of a description, and of a name of who registered it
SCHEMA_TAGS_MAX = 16  # of one version
SCHEMA_JUDGED_MAX = 100  # times that one registration is judged again, because others of its subject were faster

# -- pipelines ---------------------------------------------------------------------------------------------------------
PIPELINES_MAX = 1_000  # that a broker tracks; about 200 MiB with their log lines, at worst
PIPELINE_LEASE_SECONDS = 15.0  # without a report, after which a pipeline is lost; reports come every two seconds
PIPELINE_KEPT_SECONDS = 24 * 3600.0  # that ended pipelines are listed
PIPELINE_NAME_CHARACTERS_MAX = 128  # it is also used as a folder, a subscription and a label
PIPELINE_RUN_CHARACTERS_MAX = 64
PIPELINE_INFO_BYTES_MAX = 4 * KIB  # as JSON
PIPELINE_CAUSE_CHARACTERS_MAX = 1_000
PIPELINE_NUMBERS_MAX = 32  # of progress
PIPELINE_RECORD_PAGES = 256  # for one pipeline's own record: 4 MiB, offsets of more than 100,000 partitions
PIPELINE_LINES_KEPT = 500  # log lines of one pipeline, the last ones
PIPELINE_LINES_KEPT_BYTES = 128 * KIB  # of them
PIPELINE_LINE_CHARACTERS_MAX = 1_000  # clients cut longer lines
PIPELINE_LINES_REPORTED_MAX = 200  # with one report
DELETES_REMEMBERED_MAX = 10_000  # of a table with `sequence_by`; Iceberg stores them in every version of its metadata
TABLE_FILE_BYTES = 128 * MIB  # of a table's file, about: few files for readers, each quickly rewritten
TASK_ROWS_BYTES = 64 * KIB  # of rows that a task returns to the driver directly: a thousand tasks are 64 MiB
PIPELINE_LINES_REPORTED_BYTES = 24 * KIB  # of log lines in one report, as JSON; fits a control frame
