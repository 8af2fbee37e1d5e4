"""What may be published, stored and delivered, and how fast: policies, quotas, rates, room on the disk."""
