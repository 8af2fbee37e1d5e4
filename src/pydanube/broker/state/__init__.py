"""A topic's durable state: the log of its records, and the options that are stored with it."""
