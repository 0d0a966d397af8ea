"""What of the agent knows PyTorch."""
