"""The command `danube`: one module for each noun, loaded when it is used. All but the broker itself is a client."""
