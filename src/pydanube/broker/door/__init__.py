"""The one door: what faces may ask of the broker, and nothing behind it."""
