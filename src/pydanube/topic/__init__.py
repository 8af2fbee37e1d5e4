"""Sans-IO core of what a topic remembers besides messages: cursors, producers, subscriptions, and writes of jobs."""
