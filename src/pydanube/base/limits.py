"""A bound on everything that input can grow, and the units of bounds. Unit last in the name; the reason beside it."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
MILLISECOND = 1_000  # times are whole microseconds; a name that ends in SECONDS is a number of seconds
SECOND = 1_000 * MILLISECOND
DAY = 24 * 3600 * SECOND

# -- wire ------------------------------------------------------------------------------------------------------------
FRAME_BYTES_MAX = 16 * MIB  # one frame fits the socket buffer pool; larger batches are split by the client
BATCH_BYTES_MAX = FRAME_BYTES_MAX - 4 * KIB  # a batch and its command fit one frame
BATCH_RAW_BYTES_MAX = BATCH_BYTES_MAX  # a batch never unpacks to more than it could have been sent as
BATCH_MESSAGES_MAX = 1 << 17  # index arrays of one batch stay below 1 MiB
BATCH_ATTRIBUTES_MAX = 1 << 20  # of all messages of a batch; what they decode to stays in proportion to its bytes
ATTRIBUTES_CHECKED_BYTES_MAX = 128 * KIB  # of a batch at publish, some milliseconds; more only when read
KEY_BYTES_MAX = 4 * KIB  # a key names a thing; it is hashed and held against filters byte by byte
OFFSET_MAX = (1 << 62) - 1  # base + count never overflows a signed 64-bit column

# -- journal ---------------------------------------------------------------------------------------------------------
BLOCK_BYTES = 4 * KIB  # groups start on a block, so a torn write never touches what was synced before
JOURNAL_FILE_BYTES = 128 * MIB  # a roll every second at full speed; recovery scans one file that is not indexed
JOURNAL_FILE_BYTES_MIN = 16 * BLOCK_BYTES
GROUP_BYTES_MAX = 32 * MIB  # a group holds at least one batch of the largest size
GROUP_BYTES_TARGET = 1 * MIB  # a group stops growing here: while it is written a lone producer fills the next one
GROUP_ENTRIES_MAX = 4096  # the directory of a group stays below 256 KiB
JOURNAL_PENDING_BYTES_MAX = 64 * MIB  # appends waiting for the journal; beyond it NodeBusy
GROUPS_WAITING_MAX = 128  # groups queued before the journal; beyond it control records are refused with NodeBusy
MARK_IDLE_SECONDS = 0.25  # an idle journal covers its last group after this long
NODE_FILES_MAX = 1 << 16  # journal and kept files of one node; 8 TiB of the usual size, 768 KiB of list
DATA_DIRECTORIES_MAX = 32  # bits in a ledger's record of the directories that hold a part of it
NODE_LEDGERS_MAX = 1 << 19  # ledgers one node keeps; 24 MiB of checkpoint at each roll
NODE_LEDGERS_RESERVED = NODE_LEDGERS_MAX // 16  # of them not for messages: acks and deletions, which let others go
NODE_LEDGERS_WARN = NODE_LEDGERS_MAX * 4 // 5  # from here on the operator is told, months before it is too late
RETENTION_STEPS = (
    16  # ledgers that a topic's retention is divided into, if it gets little: as exact, and as many, as that
)
OFFSETS_OF_A_LEDGER_MAX = 1 << 40  # more than its bytes can hold messages; skipped where its end is lost with its disk
DAMAGE_LOGGED_MAX = 10_000  # damaged ranges of a broker that are remembered so as not to be logged again
LOST_RANGES_MAX = 1_000  # of one stream, given up as damaged: its record stays small enough for the metadata
RESERVE_OFFSETS = 1 << 20  # offsets a buffered ledger reserves at a time (one sync per million messages)

# -- room on the disk ------------------------------------------------------------------------------------------------
ROOM_RESERVE_FILES = (
    3  # journal files: acks fill one, the next is set aside, and a third is free for what is copied out
)
ROOM_RESERVE_METADATA_BYTES = 16 * MIB  # two metadata files of the usual size and their successors
ROOM_LOOK_SECONDS = 0.25  # between looks at the disk; what is published meanwhile is counted

# -- copies ----------------------------------------------------------------------------------------------------------
WRITER_WAITING_BYTES_MAX = 32 * MIB  # of one ledger, not confirmed yet; half of what a journal lets wait
WRITER_LAG_BYTES_MAX = 64 * MIB  # how far one copy may fall behind the others before the writer continues without it
CALL_SECONDS = 5.0  # a storage node that has not answered by then counts as unreachable
RECOVERY_AHEAD_BYTES = 4 * MIB  # entries that a recovery has read and sent on before their ack quorum has answered
CALLS_WAITING_MAX = 65_536  # requests of one process in flight to remote nodes; beyond it NodeBusy

MEMORY_NODE_BYTES = 256 * MIB  # of memory that a memory node takes for batches; beyond it NodeBusy

# -- reading ---------------------------------------------------------------------------------------------------------
READ_BYTES_MAX = 32 * MIB  # one answer to a range read; holds at least one batch of the largest size
READS_AT_ONCE_MAX = 16  # reads of one node that hold an answer in memory
READS_WAITING_MAX = 4096  # reads under way or waiting for their turn; beyond it NodeBusy
INDEX_CACHE_BYTES = 16 * MIB  # loaded indexes of closed files, least recently used out

# -- cursors and dedup -----------------------------------------------------------------------------------------------
CURSOR_CHUNK_OFFSETS = 2048  # one bitmap: 256 bytes, so that setting a bit copies little and a million acks are few
CURSOR_CHUNKS_MAX = 32_768  # of one cursor: 8 MiB, 67 million offsets from the floor; beyond it dispatch pauses
ACK_RANGES_MAX = 4096  # in one record: 64 KiB
SUBSCRIPTIONS_MAX = 4096  # of one topic; each keeps a cursor in memory
NAME_BYTES_MAX = 255  # of a subscription or producer; its length is one byte
SUBSCRIPTION_OPTIONS_BYTES_MAX = 64 * KIB  # they are kept in memory and in every snapshot
STATE_RECORD_BYTES_MAX = 256 * KIB  # a snapshot is cut into records, so that nothing waits long behind one
PRODUCERS_MAX = 4096  # names remembered by one topic, with their windows 8 MiB; as many again without a name
DEDUP_WINDOW_BATCHES = 128  # per producer: more than a client has in flight, so a resend finds its offset
PRODUCER_IDLE_SECONDS = 7 * 24 * 3600  # a named one that published or attached since then is never forgotten
PRODUCER_AWAY_SECONDS = 3600  # a temporary one whose connection was lost may come back so long, unless room is needed
PRODUCERS_FORGOTTEN_MAX = 256  # at once: forgetting is rare work, and what is remembered is worth keeping
CLOCK_JUMP_SECONDS = 60  # wall against monotonic clock; a slewed clock stays far below it
CLOCK_DISTRUST_SECONDS = 3600  # of monotonic time without deletion by time: enough for an operator to look
CLOCK_AHEAD_DAYS = 30  # of a starting broker's clock to the newest message: it may be wrong, or the broker was off
CLOCK_HELD_SECONDS = (
    60  # a jump ahead that is put right sooner is in no message; after it nobody can tell it from the truth
)
TIME_CORRECTIONS_MAX = 16  # kept in a stream's record; each took an hour to be sure of

# -- dispatch --------------------------------------------------------------------------------------------------------
CONSUMERS_MAX = 1_000  # of one subscription; 100,000 points on a Key-Shared ring
PERMITS_MAX = 1_000_000  # of one consumer; more would only hide a client that never looks at what it gets
UNACKED_MAX = 100_000  # the largest window of one subscription; its records stay below about 30 MB
UNACKED_DEFAULT = 10_000
TAKEN_MESSAGES_MAX = 10_000  # in one notice that a program has taken them: a few milliseconds of the loop
LOOKAHEAD_MESSAGES_MAX = 100_000  # queued behind blocked keys of one Key-Shared subscription
LOOKAHEAD_MESSAGES_DEFAULT = 10_000
DELAYED_MESSAGES_MAX = 1_000_000  # in the delay index of one Shared subscription; about 200 MB when full
DELAYED_MESSAGES_DEFAULT = 100_000
NACKED_AT_ONCE = 512  # messages of one subscription in one turn of the loop, some milliseconds; the others wait
ACKED_AT_ONCE = 4_096  # likewise, of one range; shorter ones are never cut
DECIDED_AT_ONCE = 256  # messages or keys of one subscription in one poll of its engine: a few milliseconds at most
LOOKED_INTO_AT_ONCE = 512  # messages of one subscription in one turn, each by its key or time: a few milliseconds
DELIVERIES_AT_ONCE = 200  # of one subscription in one turn, each cut out of its batch; the others wait
REDELIVERIES_MAX = 1_000  # a message that failed as often will not succeed
DURATION_MICROSECONDS_MAX = 36_500 * DAY  # of any duration that people write: a century fits every clock
POLICY_MICROSECONDS_MAX = DAY  # of the timeouts and delays of a failure policy
POISON_RETRY_MICROSECONDS_MIN = 100_000  # a dead-letter topic that is down is not asked in a tight loop
POISON_FAILURES_QUIET = 2  # of giving a message up; a busy moment passes, from the third on the subscription is blocked
TOLD_AGAIN_SECONDS = 60.0  # between two log lines about the same trouble of one subscription, or of a background loop
ROUND_FAILED_PAUSE_SECONDS = 1.0  # of such a loop after a round that failed: a mistake that stays costs little
REASON_CHARACTERS_MAX = 1_000  # of why a message failed; it travels as an attribute of the dead letter
FILTERS_MAX = 16  # key filters of one consumer; a new key is held against all of them
FILTER_BYTES_MAX = 256  # of one key filter
FILTERS_BYTES_MAX = 64 * KIB  # of one subscription, equal ones once; the longest key takes some 10 ms with all of them
KEYS_AT_ONCE_BYTES = 64 * KIB  # of keys in one turn; less, in proportion, with more than a KiB of filters
OWNER_CACHE_KEYS_MAX = 65_536  # keys whose consumer is remembered until the ring changes
OWNER_CACHE_BYTES_MAX = 16 * MIB  # of these keys
IDLE_KEY_BYTES_MAX = 256  # longer keys are forgotten when nothing of them is left

# -- topics ----------------------------------------------------------------------------------------------------------
TAIL_CACHE_BYTES = 256 * MIB  # of memory for the newest batches of all topics of a broker
READ_AHEAD_BYTES = 1 * MIB  # one read of a subscription that is behind the cache
READ_AHEAD_ALL_BYTES_MAX = 256 * MIB  # of memory for such batches of all subscriptions of a broker; one has its own
STATE_QUEUE_RECORDS_MAX = 65_536  # state records of one topic on their way to its log; beyond it TopicBusy
STATE_AMID_SNAPSHOT_RECORDS_MAX = 1 << 20  # written between two parts of one snapshot; a restart holds them in memory
STATE_COMPACT_BYTES = 1 * MIB  # of a topic's state log since its last snapshot; a restart reads little more than this
HEADERS_REPLAYED_BYTES_MAX = 256 * MIB  # of messages since the last snapshot that a restart reads to know its producers
HEADERS_UNREAD_BYTES = 16 * MIB  # the same, for the first producer of a topic: a snapshot for each would cost more
REPEATS_WAITING_MAX = 65_536  # batches of one topic sent again while the first is not confirmed; beyond it TopicBusy

# -- broker ----------------------------------------------------------------------------------------------------------
TOPIC_NAME_CHARACTERS_MAX = 255  # of a topic's whole name, and of a namespace
PARTITIONS_MAX = 1024  # of one topic
PARTITIONS_AT_ONCE = 32  # of one topic that are opened or changed at a time: others find a turn between them
NAMESPACES_MAX = 10_000
STREAM_TAKE_SECONDS = 30.0  # of one attempt to open a stream that fails: it holds a turn of the topics meanwhile
TOPICS_OPENING_MAX = 64  # topics that are taken at once; the others wait their turn
TOPICS_REOPENING = 4  # of these, those opened after a start though nobody has asked for them: a caller waits for few
TOPICS_RESUMING = 4  # topics whose interrupted changes are finished at once after a start, apart from the others
TOPIC_CHANGES_KEPT = 16_384  # changes of topics that a broker remembers for who waits to hear of them; about 3 MiB
TOPIC_CHANGES_TOLD_MAX = 200  # topics in one answer, so that it fits a control frame; of more, all are looked at
TOPIC_WATCH_NAMESPACES_MAX = 200  # in one request, so that it fits a control frame; who follows more hears of all
TOPIC_WATCHERS_MAX = 20_000  # requests that wait for a change at a time; beyond it TopicBusy
NEWS_PLACES_MAX = 1_000  # partitions that one request waits for: each is a task
NEWS_SECONDS_MAX = 5.0  # that such a request waits; less than a client waits for an answer
TOPIC_WATCH_SECONDS_MAX = 20.0  # that such a request waits; less than a client waits for an answer
UNUSED_SUBSCRIPTION_SECONDS = 60  # without a consumer, after which a subscription of a topic that keeps nothing ends
HOUSE_TURNS = 8  # topics whose housekeeping is under way at a time: most of it waits for a disk
HOUSE_TURN_SECONDS = 0.5  # after which a topic is waited for apart, and the next one gets its turn
HOUSE_SLOW_TURNS_MAX = 1_000  # waited for apart: each may hold a batch that it reads
REQUESTS_AT_ONCE_MAX = 256  # requests of one connection that are being served; beyond it TopicBusy
REFUSALS_NAMED_MAX = 10  # dead letters that their topic does not take: these are named, the others counted
REDRIVE_LETTERS_MAX = 2_000  # that one request looks at, whether or not they are wanted: it must be answered in time
LISTED_MAX = 500  # names in one answer of a list; the rest is asked for after the last of them
UNREADABLE_OFFSETS_MAX = 16  # that a subscription remembers: what comes next, and what is to be delivered again
HINDRANCE_TOLD_SECONDS = 5  # between two notices to a consumer of what cannot be read: one that missed it hears again
BLOCKED_LISTED_MAX = 50  # subscriptions that are blocked or abandoned, in one answer: who has more has one cause
ABANDONED_SECONDS = 3 * 24 * 3600  # that the oldest message waits for a subscription without consumers: not a weekend
LISTED_BYTES_MAX = 48 * KIB  # of them, so that the answer fits a control frame
CHANNELS_MAX = 20_000  # producers and consumers of one connection
CONNECTIONS_MAX = 20_000  # of one broker
HELLO_SECONDS = 5.0  # a connection that has not said hello by then is closed
SEND_BUFFER_BYTES_MAX = 1 * MIB  # waiting for a slow reader; its consumers get no more until it reads
SEND_BUFFERS_BYTES_MAX = 512 * MIB  # of all who take nothing; beyond it whoever has done so longest is hung up on

# -- policies --------------------------------------------------------------------------------------------------------
RATE_DEBT_SECONDS_MAX = 2  # answers to publishes beyond the rate come at most about as late; more is RateExceeded
ANSWERS_HELD_MAX = 65_536  # of one topic, held back for its publish rate; beyond it RateExceeded
UNCONFIRMED_BYTES_MAX = 512 * KIB  # on their way to the journal, of all connections: what comes next waits behind them
UNCONFIRMED_ALONE_BYTES_MAX = 4 * MIB  # where only one connection publishes, and nobody waits behind it
UNCONFIRMED_BYTES_MIN = 64 * KIB  # what one connection may have on its way, however many there are

# -- native protocol -------------------------------------------------------------------------------------------------
HELLO_FRAME_BYTES_MAX = 4 * KIB  # before WELCOME nobody is known, and ten thousand may be half way through a hello
CONTROL_BYTES_MAX = 64 * KIB  # the body of a control frame; it is decoded on the loop
FRAME_BYTES_MIN = 128 * KIB  # the least a broker may announce: a control frame, or a batch worth sending
REQUEST_VALUES_MAX = 8_192  # of a request: a control body can be all numbers of one digit, and each takes its time
JSON_OBJECTS_MAX = 4_096  # of a request: a thousand messages with their attributes are half of it
JSON_DEPTH_MAX = 16  # of a control body; far from what a stack holds
VERB_BYTES_MAX = 64
KEEPALIVE_SECONDS_MAX = 3600  # a side that is gone is noticed within two hours at the latest
FEATURES_MAX = 64  # named in one hello or welcome
FEATURE_BYTES_MAX = 64
FRAMES_UNFINISHED_BYTES_MAX = 256 * MIB  # of all connections; beyond it the frame that began first is given up
REASON_BYTES_MAX = 1_000  # of why a message failed, on the wire
ERROR_MESSAGE_CHARACTERS_MAX = 500  # an error fits a frame before WELCOME, however its text is escaped

# -- clients ---------------------------------------------------------------------------------------------------------
PRODUCER_BUFFER_BYTES = 64 * MIB  # of one producer, sent or waiting, not acknowledged; beyond it sends wait in line
PRODUCER_QUEUE_BYTES_MAX = 64 * MIB  # of sends that wait in line and that nobody awaits; beyond it ProducerBusy
PRODUCER_BATCH_BYTES = 256 * KIB  # a batch is sent when it has as many: large enough that its costs are shared
PRODUCER_BATCH_MESSAGES = 4_000  # or as many messages
PRODUCER_IN_FLIGHT_BATCHES_MAX = 120  # of one partition without an answer; fewer than the broker remembers for resends
MESSAGE_OVERHEAD_BYTES = 64  # what a message without a payload counts, so that empty ones are bounded too
KEY_MEMO_KEYS_MAX = 32_768  # keys whose hash a process remembers, about 8 MiB of them: hashing one takes a microsecond
KEYS_HASHED_AT_ONCE_BYTES = 16 * KIB  # in one turn of the loop, one or two milliseconds
KEY_MEMO_BYTES_MAX = 128  # longer keys are hashed each time
CONSUMER_PREFETCH_MESSAGES = 10_000  # on their way to one consumer of one partition
CONSUMER_PREFETCH_BYTES = 64 * MIB  # waiting in a consumer for its program, of all its partitions
GRANTED_BYTES_MAX = (1 << 32) - 1  # with one GRANT
CLIENT_ACKS_KEPT_GROUPS_MAX = 1_000  # acks of one feed that wait for a connection, each group of a frame at most
CLIENT_POSTPONED_RANGES_MAX = 10_000  # nacks of one feed whose delay outlives a connection; older ones are forgotten
CLIENT_ACK_RANGES = 1_000  # coalesced into one frame; a quarter of what a record may have
CLIENT_REQUESTS_MAX = 65_536  # of one connection without an answer; beyond it the caller waits no more but is refused
CLIENT_REQUESTS_AT_ONCE = 200  # of them are sent, the rest wait their turn: fewer than REQUESTS_AT_ONCE_MAX

# -- metadata --------------------------------------------------------------------------------------------------------
METADATA_OPERATIONS_MAX = 128  # checks and changes of one transaction; etcd's limit
METADATA_KEY_BYTES_MAX = 1024
METADATA_VALUE_BYTES_MAX = 1 * MIB
METADATA_TRANSACTION_BYTES_MAX = 8 * MIB  # one transaction fits one frame between brokers
METADATA_KEYS_MAX = 1 << 20  # all of them are in memory, and sorted
METADATA_BYTES_MAX = 256 * MIB  # of keys and values together; a start reads and a snapshot writes all of it
METADATA_RESERVE_BYTES = 16 * MIB  # beyond, for the ledgers of streams that exist: only then can topics be trimmed
METADATA_RESERVE_KEYS = METADATA_KEYS_MAX // 16  # the same
METADATA_LONGER_BYTES = 64  # by which a value may always grow: what deletes something writes numbers, too
METADATA_WAITING_BYTES_MAX = 32 * MIB  # transactions on their way to the log; beyond it MetadataBusy
METADATA_GROUP_TRANSACTIONS_MAX = 512  # of one write; applying them is one turn of the loop, a few milliseconds
METADATA_LOG_BYTES = 4 * MIB  # of log before a new file with a snapshot; a start replays little more than this
METADATA_SNAPSHOT_CHUNK_BYTES = 256 * KIB  # encoded at a time, so that no turn of the loop is long
WATCHES_MAX = 1024  # of one store; each change is held against all of them
WATCH_CHANGES_MAX = 16_384  # waiting for one watcher; beyond it WatchLagged
SESSIONS_MAX = 65_536  # of one store; each has a timer
SESSION_SECONDS_MAX = 24 * 3600.0
LEDGERS_LISTED_MAX = 128  # in a stream's record, about 26 KiB; beyond it the older half moves into a key of its own
LEDGERS_SWEPT_MAX = 1024  # deleted from the nodes before the stream's record forgets them
LEDGER_PAGES_CHANGED_MAX = 64  # by one change of a stream's record: half a transaction, so there is room for the rest
LEDGERS_DELETED_AT_ONCE = 32  # of one stream, on their way to the nodes; fewer than the groups a journal lets wait
LEDGER_ID_BLOCK = 64  # ids taken at a time, so that a new ledger costs one write of metadata and not two

# -- configuration, TLS and keepalive --------------------------------------------------------------------------------
CONFIG_FILE_BYTES_MAX = 64 * KIB  # a file that is longer is not a configuration
CONNECTIONS_GREETING_MAX = 4_096  # that have not said hello yet; beyond it the one that waits longest goes
CONNECTIONS_LINGERING_MAX = 64  # too many, that are waited for to be told so; FILES_RESERVED has room for them
LINGER_SECONDS = 1.0  # for their first bytes, which say how to tell them
REFUSED_HANDSHAKES_MAX = 32  # in that time: telling it by TLS costs about a millisecond of the loop each
FILES_RESERVED = 512  # file descriptors that connections leave to the journal and the rest
KEEPALIVE_SECONDS = 30  # of silence before the broker asks; it takes twice as long for an end
SWEEP_CONNECTIONS = 32  # looked at in one turn: ten thousand idle ones are never more than a fraction of a millisecond
ADDRESS_BYTES_MAX = 300  # a host of 253 and a port, with room for brackets and a zone
CERTIFICATE_LOOK_SECONDS = 5.0  # how often the files of a certificate are looked at

# -- turns of the loop -------------------------------------------------------------------------------------------------
TURN_SECONDS = 0.001  # that connections work off what they were sent, before the loop looks who else is there
REQUESTS_BEGUN_PER_TURN = 4  # of all connections: most take a tenth of a millisecond, a large answer some
FRESH_SECONDS = 0.002  # the same for those that are not behind: a read of 64 calls is served in one go, and answered so
ACCEPTED_AT_ONCE = 16  # connections, in one turn: each takes a tenth of a millisecond
HANDSHAKES_BEGUN_PER_TURN = 4  # of TLS: a fifth of a millisecond each, before anything is computed
TLS_READ_BYTES = 256 * KIB  # of a socket at once, before they are decrypted; as much as without TLS
TLS_RECORDS_AT_ONCE = 64  # of them, between two looks at the clock: as many changes of keys are half a millisecond
FRAMES_CUT_AT_ONCE = 256  # out of what came: a tenth of a millisecond, where one read may have 13,000
FRAMES_AT_ONCE = 32  # of the native protocol, between two looks at the clock
FRAMES_AT_ONCE_BYTES = 16 * KIB  # the same: a frame of acks that is larger takes a millisecond
RANGES_AT_ONCE = 128  # of one frame of acks, likewise
HTTP_CHUNKS_AT_ONCE = 256  # of a body, likewise
GRPC_MESSAGES_AT_ONCE = 32  # of one stream, likewise
DECODED_BYTES = 1 * MIB  # unpacked, of a batch whose messages are looked at on the loop; larger ones beside it
DECODED_ATTRIBUTES_BYTES = 64 * KIB  # the same of its attributes: each of them becomes objects
DECODED_MESSAGES = 4_096  # of such a batch, likewise
LZ4_FRONT_BYTES_MAX = 4 * KIB  # unpacked in Python to look at sizes: at most a thousand steps, a millisecond
LZ4_JUDGED_BYTES_MAX = 2 * MIB  # of an lz4 batch with more messages than fit there: it is unpacked as a whole

# -- HTTP/2 ----------------------------------------------------------------------------------------------------------
HTTP2_STREAMS_MAX = 1024  # open at once on one connection; each consumer of a client holds one
HTTP2_HEADER_LIST_BYTES_MAX = 12 * KIB  # announced, more than most gRPC servers do; a request with more is reset
HTTP2_HEADER_LIST_BYTES_READ = 16 * KIB  # decoded at most, in a few milliseconds; beyond it the connection ends
HTTP2_HEADER_BLOCK_BYTES_MAX = 16 * KIB  # of one HEADERS with its CONTINUATIONs, before it is decoded
HTTP2_CONTINUATIONS_MAX = 16  # of one header block; empty ones would otherwise go on forever
HTTP2_HEADER_BYTES_PER_WORK = 16  # of a block that has to be decoded: as dear as a frame, about 5 µs
HTTP2_DATA_BYTES_PER_WORK = 256  # of a body: it may be cut into messages of five bytes
HTTP2_WORK_AT_ONCE = 64  # frames, or as much: at most a millisecond or two between two looks at the clock
HTTP2_HEADER_TABLE_RESIZES_MAX = 2  # at the start of one block; RFC 7541 (4.2) knows no use for more
HTTP2_HEADER_MEMO_BLOCKS_MAX = 64  # blocks of one connection whose headers are remembered; one per method and metadata
HTTP2_HEADER_MEMO_BLOCK_BYTES_MAX = 512  # longer blocks are decoded each time
HTTP2_CONNECTION_WINDOW_BYTES = 16 * MIB  # given back on receipt: what is held is bounded by the windows of the streams
HTTP2_RESERVED_BYTES_MAX = 32 * MIB  # given to streams of one connection beyond their first 64 KiB; the others wait
HTTP2_STREAM_QUEUE_BYTES_MAX = 256 * KIB  # of one stream, waiting for a slow reader; one message may go beyond
HTTP2_QUEUE_BYTES_MAX = 16 * MIB  # of all streams of a connection; one message may go beyond
HTTP2_STREAMS_FORGOTTEN_MAX = 1024  # we ended and the client may not know yet: their late frames are let pass
HTTP2_RESETS_MAX = 4 * HTTP2_STREAMS_MAX  # at once: a client that leaves cancels everything it has, rightly
HTTP2_RESETS_PER_SECOND = 1_000  # of streams, by the client or by its faults; beyond it the connection ends
HTTP2_IDLE_FRAMES_MAX = 10_000  # PING, SETTINGS, PRIORITY, empty and unknown frames at once; they carry nothing
HTTP2_IDLE_FRAMES_PER_SECOND = 1_000
GRPC_MESSAGE_BYTES_MAX = 4 * MIB  # of a message to a client; what every gRPC peer takes unless told otherwise
GRPC_REQUEST_BYTES_MAX = GRPC_MESSAGE_BYTES_MAX - 1 * KIB  # delivered, it also has an offset, a time and an address
GRPC_STATUS_MESSAGE_BYTES_MAX = 1 * KIB  # three times as long when escaped; it travels as a header

# -- HTTP/1, REST and metrics ----------------------------------------------------------------------------------------
HTTP_LINE_BYTES_MAX = 8 * KIB  # a request line: a path of names, each at most 255 bytes and three times that escaped
HTTP_HEAD_BYTES_MAX = 16 * KIB  # request line and headers
HTTP_HEADERS_MAX = 64  # of one request; a browser sends about twenty
HTTP_CHUNK_LINE_BYTES_MAX = 256  # size and extensions of one chunk
HTTP_BODY_BYTES_MAX = 1 * MIB  # decoded in one turn of the loop; what is larger has the native protocol
HTTP_BODIES_BYTES_MAX = 64 * MIB  # of all requests that are being received; beyond it HttpBusy
HTTP_PIPELINED_BYTES_MAX = 64 * KIB  # of requests behind the one being served; beyond it nothing more is read
HTTP_REQUEST_SECONDS = 20.0  # from the first byte of a request to its last; a body of the largest size at 50 KiB/s
HTTP_LINGER_SECONDS = 1.0  # for whoever is refused to take the answer; what it still sends is let pass
HTTP_REQUESTS_MAX = 1_000  # being served at a time, of all connections; beyond it HttpBusy
HTTP_QUERY_FIELDS_MAX = 16
HTTP_JSON_BYTES_MAX = 512 * KIB  # of messages as JSON: some milliseconds of the loop
HTTP_JSON_VALUES_MAX = 20_000  # in one body: what is larger than a control frame must not be all small things
PUBLISHED_MESSAGES_MAX = 1_000  # in one request over HTTP: each becomes an object on the loop
PEEKED_MESSAGES_MAX = 1_000  # in one answer
PEEKED_BYTES_MAX = 1 * MIB  # of their values; one message may go beyond
PEEKED_VALUE_BYTES_MAX = 256 * KIB  # of one message; what is longer is cut, and says so
PEEK_WAIT_SECONDS_MAX = 20.0  # less than a proxy between waits
WAITING_REQUESTS_MAX = HTTP_REQUESTS_MAX // 2  # that wait for messages: the others are left for what is quick
LEASES_MAX = 100_000  # of messages received over HTTP, of one broker: about 50 MiB
LEASES_AT_ONCE_MAX = 1_000  # in one request: received, acknowledged, failed or extended
LEASE_SECONDS_MAX = 12 * 3600  # what holds a message for longer is a job of its own
RECEIVED_BYTES_MAX = 1 * MIB  # of the values in one answer; one message may go beyond
METRIC_TOPICS_MAX = 500  # topics with samples of their own; the others are summed up under `_other`
METRIC_SUBSCRIPTIONS_MAX = 1_000  # the same for subscriptions
METRICS_KEPT_SECONDS = 1.0  # a page is given out again so long: scrapes cost nothing, however many come
LEDGERS_A_TURN = 1_000  # looked at in one turn of the loop, some hundred microseconds
TOPICS_A_TURN = 250  # listed over gRPC in one turn of the loop, a millisecond
TOPICS_READ_A_TURN = 100  # records of metadata, decoded for a list in one turn: two milliseconds
SUBSCRIPTIONS_A_TURN = 50  # described for a list in one turn, each in one partition: three milliseconds
METRIC_SLICE = 50  # topics looked at in one turn of the loop, some hundred microseconds
METRIC_READS_MAX = 32  # of storage in one scrape, for the age of backlogs that are not in memory
AGE_READS_MAX = 100  # the same, in one answer about subscriptions: some ten milliseconds

# -- gRPC face -------------------------------------------------------------------------------------------------------
GRPC_BODIES_BYTES_MAX = 128 * MIB  # of all requests that are being received; beyond it HttpBusy
GRPC_BODY_SECONDS = 60.0  # from the first byte of a request to its last; the largest at 70 KiB/s
GRPC_FIELDS_MAX = 1_024  # of a request, each attribute of a message one; to decode 380,000 stops all for seconds
GRPC_COALESCED_BYTES = 1 * MIB  # of messages that came in one read and become one batch
GRPC_COALESCED_MESSAGES = 1_000  # of them
GRPC_UNACKED_DEFAULT = 10  # window of a subscription made here: clients queue it, and its ack timeout runs meanwhile
GRPC_CONSUMERS_REMEMBERED_MAX = 10_000  # of one broker, so that they go on after a restart; the oldest are forgotten
GRPC_REFUSAL_SECONDS = 0.2  # before a consumer that is not known hears so: some ask again at once, forever
GRPC_GOODBYE_SECONDS = 0.4  # for calls that are being answered when the connection is to end
GRPC_CLOSE_SECONDS = 6.0  # between CLOSE in answer to health checks, which come every 5 s, and the end of a stream
GRPC_OPTIONS_PENDING_MAX = 1_000  # of subscriptions that nobody has made yet, or not in partitions that may come
NOTE_BYTES_MAX = 16 * KIB  # of what a face keeps with the metadata under one name

# -- backup ----------------------------------------------------------------------------------------------------------
BACKUP_CHUNK_BYTES_MAX = 512 * KIB  # read at a time: half a millisecond of the loop, and of the journal's disk
BACKUP_FILES_LISTED_MAX = 400  # in one answer, so that it fits a control frame
BACKUP_SILENCE_SECONDS = 60.0  # of a client that copies, after which it is gone, and its files may go

# -- cold tier -------------------------------------------------------------------------------------------------------
SMALL_OBJECT_BYTES_MAX = 16 * MIB  # lists of segments and marks, read as a whole
SEGMENT_BATCHES_BYTES_MAX = 272 * MIB  # batches of one segment: a ledger of the largest size and one batch
SEGMENTS_LISTED_MAX = 128  # in a stream's record; beyond it the older half moves into an index object
COLD_INDEXES_KEPT = 64  # index objects in memory, of 64 segments each: about 2 MB

# -- writes that happen exactly once ----------------------------------------------------------------------------------
SINK_TEXT_BYTES_MAX = 1 * KIB  # of a query's id, a target or a name
SINK_SOURCE_BYTES_MAX = 30 * KIB  # where an input ends, else its digest: quoted as JSON it fits a frame of 64 KiB
SINK_REPEATS_MAX = 64  # runs that came with the same batch again, and are remembered
SINK_PARTS_MAX = 5_000  # partitions of one batch: their record fits one value of the metadata
SINK_REFS_MAX = 500_000  # stretches of staged messages in one batch
SINK_WINDOW_BYTES = 1 * MIB  # of staged messages on their way to a partition: what producers beside it wait for
SINK_SETTLE_SECONDS = 10.0  # until all that others publish to a partition is confirmed; else the writer tries again
SINK_BLOCKED_SECONDS = 30.0  # of failing to write a decided batch, after which it is shown as blocked
SINKS_MAX = 10_000  # writers that a broker remembers; all are compared with a new one
SINK_KEPT_SECONDS = 90 * 24 * 3600  # how long after its last batch a writer is remembered, so that it may repeat it
SINK_KEPT_SECONDS_MIN = 7 * 24 * 3600  # the same, where there are too many
STAGED_SECONDS = 24 * 3600  # how long staged messages stay that nobody commits

# -- pipelines ---------------------------------------------------------------------------------------------------------
PIPELINES_MAX = 1_000  # that a broker keeps track of; about 200 MiB with their lines, at worst
PIPELINE_LEASE_SECONDS = 15.0  # without a report, after which one is lost; several reports of two seconds
PIPELINE_KEPT_SECONDS = 24 * 3600.0  # how long those that ended are listed
PIPELINE_NAME_CHARACTERS_MAX = 128  # it is a folder, a subscription and a label too
PIPELINE_RUN_CHARACTERS_MAX = 64
PIPELINE_INFO_BYTES_MAX = 4 * KIB  # as JSON
PIPELINE_CAUSE_CHARACTERS_MAX = 1_000
PIPELINE_NUMBERS_MAX = 32  # of progress
PIPELINE_RECORD_PAGES = 256  # notes in which one remembers itself: 4 MiB are offsets of 100,000 partitions and more
PIPELINE_LINES_KEPT = 500  # the last of one pipeline
PIPELINE_LINES_KEPT_BYTES = 128 * KIB  # of them
PIPELINE_LINE_CHARACTERS_MAX = 1_000  # clients cut what is longer
PIPELINE_LINES_REPORTED_MAX = 200  # with one report
DELETES_REMEMBERED_MAX = (
    10_000  # of a table with `sequence_by`: an Iceberg table has them in every version of its metadata
)
TABLE_FILE_BYTES = 128 * MIB  # of a table's file, about: few enough files for readers, and each is soon rewritten
TASK_ROWS_BYTES = 64 * KIB  # of rows that a task hands to the driver as they are: a thousand tasks are 64 MiB
PIPELINE_LINES_REPORTED_BYTES = 24 * KIB  # that a client sends with one report, as JSON: it fits a control frame
