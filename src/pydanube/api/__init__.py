"""The faces of the broker. They translate bytes into calls of `broker/door/service.py` and back, and never decide."""
