"""The faces of the broker. They translate bytes into calls of the door (`broker/door`) and back, and decide nothing."""
