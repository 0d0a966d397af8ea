"""The documented functions of TaskD."""
