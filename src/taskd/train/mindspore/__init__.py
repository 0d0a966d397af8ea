"""Recovery of MindSpore training."""
