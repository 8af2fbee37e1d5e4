"""Topics on their owner, reliable or best-effort: publishing, subscriptions, dead letters and housekeeping."""
