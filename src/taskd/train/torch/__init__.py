"""Recovery of PyTorch training."""
