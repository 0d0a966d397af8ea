"""The cluster's control plane."""
