"""The owner of a node's training processes."""
