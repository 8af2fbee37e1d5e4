"""HTTP/1.1 on the listener: REST under /api/v1, metrics, and health probes."""
