"""The durable state of a topic: the log of its records, and the options of topics and subscriptions."""
