"""Which namespaces and topics exist, with what is stored about them in the metadata."""
