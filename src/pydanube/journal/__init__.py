"""Sans-IO core of a storage node: the bytes of journal files, what damage means, and who may append to a ledger."""
