"""Limits on what may be published, stored and delivered: policies, quotas, rates, and free disk space."""
