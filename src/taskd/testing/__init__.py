"""Fakes for tests: a simulated job, links that lose messages, a fault script."""
