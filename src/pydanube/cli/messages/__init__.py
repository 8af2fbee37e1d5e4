"""Messages in commands: where they are read from, how they are printed, and what a topic stores now."""
