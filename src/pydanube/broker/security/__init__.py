"""Who callers are and what they may do: checks tokens, and follows the roles and bindings in the metadata."""
