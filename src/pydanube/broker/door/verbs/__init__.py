"""The verbs of a session, in groups by what they are about."""
