"""How a broker works in the background: errands that outlive a request, jobs with tickets, turns, retried troubles."""
