"""The one listener: connections, TLS, and the turns that connections take."""
