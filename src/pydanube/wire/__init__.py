"""Sans-IO formats: the batch now; frames, commands and HTTP/2 later. Bytes in, values out; owns no socket."""
