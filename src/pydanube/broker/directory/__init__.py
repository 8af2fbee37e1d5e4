"""The namespaces and topics that exist, and what the metadata stores about them."""
