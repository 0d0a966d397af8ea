"""The operator's figures, against a real API server."""
