"""The server side of HTTP/2 (RFC 9113), and gRPC's framing on top of it: bytes in, events out. It owns no socket."""
