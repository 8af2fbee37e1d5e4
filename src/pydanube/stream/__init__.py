"""Sans-IO core of a topic's stream: its record, quorums, append times, retention, and when segments are made."""
