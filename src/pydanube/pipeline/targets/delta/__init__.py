"""Delta tables as a target."""
