"""Sans-IO formats: the batch, the native and the peer protocol, HTTP/1, HTTP/2. Bytes in, values out; no sockets."""
