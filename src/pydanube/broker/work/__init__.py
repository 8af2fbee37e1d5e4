"""Helpers for the work of a broker: errands that outlive a request, jobs with tickets, locks by name, failures and
logs."""
