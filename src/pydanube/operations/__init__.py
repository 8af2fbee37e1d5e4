"""What can be asked of a broker: for each operation a request and an answer, as typed values.

The native protocol, REST with its description, the client and the command line all derive from these classes. A core:
it decides nothing and touches nothing.
"""
