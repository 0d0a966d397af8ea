"""The part that lives inside a training process."""
