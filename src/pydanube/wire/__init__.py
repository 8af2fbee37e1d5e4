"""Sans-IO formats: the batch, the native protocol, HTTP/1 and HTTP/2. Bytes in, values out; no socket is used here."""
