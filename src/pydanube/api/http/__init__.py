"""HTTP/1.1 on the one listener: REST under /api/v1, metrics, and whether the broker is alive and ready."""
