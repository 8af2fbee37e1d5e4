"""The faces of the broker. They translate bytes into calls of `broker/door/` and back, and never decide."""
