"""What all commands share: options, contexts, command-line values, completion, output, confirmation, exit codes."""
