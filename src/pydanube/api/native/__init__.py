"""The native protocol on a socket."""
