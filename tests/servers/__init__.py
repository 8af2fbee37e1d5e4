"""Real servers of object storage for tests: each started on a free port of this machine, and stopped again.

`make servers` installs them into `.servers/`. What is not installed is skipped with the reason; in CI moto and Swift
must be there.
"""
