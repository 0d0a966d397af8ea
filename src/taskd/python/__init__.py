"""Paths that users' images import or preload. Thin: the work is done elsewhere."""
