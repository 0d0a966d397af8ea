"""The Kubernetes client."""
