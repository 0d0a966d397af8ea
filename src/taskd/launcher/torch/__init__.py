"""What of the launcher knows PyTorch: the seam that turns torchrun into it."""
