"""What all commands share: settings, contexts, command-line values, completion, and how a command ends."""
