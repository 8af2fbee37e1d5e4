"""A server's side of HTTP/2 (RFC 9113) and gRPC's framing on it: bytes in, events out. Owns no socket."""
