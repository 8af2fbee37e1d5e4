"""The command `danube`."""
