"""AscendJob on Kubernetes."""
