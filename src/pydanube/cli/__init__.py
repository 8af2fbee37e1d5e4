"""The command `danube`. Every command except `danube standalone`, which is the broker, is a client of a broker.

`commands/` has one module per command group, loaded on first use; `messages/` turns messages into text and back;
`shell/` is what all commands share. `commands` may import both, `messages` only `shell`.
"""
