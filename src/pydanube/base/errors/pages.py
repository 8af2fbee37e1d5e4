"""Which page of `docs/` explains an error: the page about the problem, not about the code that raises the error.

`docs/errors.md` links to these pages, so the test of its links notices a page or heading that does not exist.
"""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError

_PAGES = {
    "client.md": "already_opened argument_invalid client_closed not_opened",
    "client.md#which-error": "channel_invalid internal not_allowed",
    "client.md#sending": "producer_busy topic_busy",
    "client.md#when-a-message-is-bad": "batch_invalid batch_too_large batch_unreadable key_too_long message_too_large",
    "client.md#when-the-connection-breaks": "connection_lost not_owner producer_fenced producer_unknown topic_closed",
    "client.md#when-the-broker-does-not-answer": "not_answered",
    "client.md#threads-callbacks-and-forks": "client_forked other_loop",
    "client.md#your-own-sequence-numbers": (
        "offset_unknown sequence_gap sequence_invalid sequence_overlap sequence_unknown too_many_producers"
    ),
    "clients.md": "grpc_call_invalid grpc_encoding_unknown grpc_message_too_large grpc_peer_forgotten",
    "clients.md#supported-services": "broker_not_found not_served",
    "concepts/dispatch.md": "not_reliable topic_kind_differs",
    "concepts/subscriptions.md": "subscription_exists subscription_invalid subscription_not_found",
    "concepts/subscriptions.md#four-types": "consumer_busy subscription_kind_differs",
    "concepts/subscriptions.md#acknowledging": "ack_invalid acks_scattered consumer_not_found",
    "concepts/subscriptions.md#what-a-subscription-costs": "too_many_consumers too_many_subscriptions",
    "concepts/subscriptions.md#when-nothing-arrives": "nothing_received",
    "concepts/topics.md": "topic_exists topic_not_found",
    "concepts/topics.md#names": "name_invalid namespace_exists namespace_not_empty namespace_not_found",
    "concepts/topics.md#partitions": "partition_missing",
    "concepts/topics.md#choices-when-you-create-a-topic": "topic_exclusive",
    "configuration.md": "config_invalid storage_kind_unknown",
    "configuration.md#addresses": "address_invalid",
    "configuration.md#tls": "tls_failed",
    "configuration.md#settings": "too_many_connections",
    "internals/dispatch.md#key-shared": "filter_invalid",
    "internals/http2.md": "http_connection_error http_stream_error",
    "internals/peer-protocol.md#refusals": (
        "peer_cluster_differs peer_frame_damaged peer_identity_differs peer_message_too_large peer_outdated "
        "peer_protocol_error peer_refused peer_secret_differs peer_version_unsupported"
    ),
    "internals/protocol.md#faults": "broker_protocol_error frames_busy protocol_error verb_unknown",
    "internals/quorum.md": (
        "catalog_conflict entry_conflict entry_missing ledger_exists ledger_fenced ledger_not_found "
        "ledger_unrecoverable node_busy node_closed node_replaced node_unreachable offset_not_confirmed ownership_lost "
        "quorum_lost too_many_ledgers topic_recovering"
    ),
    "internals/raft.md": "log_diverged membership_refused not_leader",
    "operating.md#damage": (
        "batch_damaged file_missing ledger_away ledger_damaged metadata_damaged offsets_damaged state_invalid"
    ),
    "operating.md#backup": "backup_ended backup_invalid backup_running",
    "operating.md#disk-full": "disk_full",
    "operating.md#the-data-directory": (
        "directory_in_use disk_failed metadata_busy metadata_closed metadata_conflict metadata_full metadata_invalid "
        "metadata_outdated node_directory_invalid session_expired watch_lagged"
    ),
    "pipelines.md": "flow_invalid",
    "internals/pipelines.md#writing-a-connector": "connector_conflict connector_missing",
    "pipelines.md#dead-letters": "redrive_overtaken row_invalid",
    "pipelines.md#running-it": (
        "pipeline_ended pipeline_failed pipeline_limit_reached pipeline_not_found pipeline_running"
    ),
    "pipelines.md#sinks": "schema_mismatch table_unsupported target_failed target_refused",
    "policies.md": (
        "backlog_full consumer_limit_reached limit_reached policy_invalid producer_limit_reached "
        "subscription_consumer_limit_reached subscription_limit_reached topic_limit_reached"
    ),
    "policies.md#bytes": "quota_reached",
    "policies.md#rates": "rate_exceeded",
    "rest.md": "content_type_unknown http_request_invalid http_unsupported request_invalid",
    "rest.md#routes": "method_not_allowed route_not_found",
    "rest.md#consuming": "lease_ended too_many_leases",
    "rest.md#limits": (
        "http_body_too_large http_busy http_head_too_large http_host_refused http_origin_refused http_target_too_long "
        "http_too_slow"
    ),
    "spark.md": "column_invalid data_lost java_missing option_invalid subscription_in_use topic_replaced",
    "internals/sinks.md": "sink_blocked sink_conflict sink_expired too_many_sinks",
    "subscriptions.md": "subscription_option_invalid",
    "tiering.md#locations": "object_exists object_missing objects_refused",
    "tiering.md#when-object-storage-is-slow-unavailable-full-or-lost": (
        "objects_failed segment_conflict segment_damaged segment_missing tier_busy"
    ),
}
_PAGE_OF = {code: page for page, codes in _PAGES.items() for code in codes.split()}


def page_of(kind: type[DanubeError]) -> str:
    """The page relative to `docs/`, with its heading if there is one."""
    return _PAGE_OF[kind.code]
