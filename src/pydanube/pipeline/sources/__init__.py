"""Kinds of sources, one module each: how a declaration is read and checked, and how its rows are read."""
