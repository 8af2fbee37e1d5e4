"""Sans-IO formats: the batch, and the native protocol's frames and commands. Bytes in, values out; owns no socket."""
