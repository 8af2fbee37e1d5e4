"""The door: everything that faces may ask of the broker. They import nothing behind it."""
