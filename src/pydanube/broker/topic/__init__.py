"""Topics on their owner, reliable and best-effort: publishing, deduplication, dead letters, and housekeeping."""
