"""Kinds of sinks, one module each: how a declaration is read and checked, and what its rows are written through."""
