"""The listener of the broker: connections, TLS, and the turns in which connections are served."""
