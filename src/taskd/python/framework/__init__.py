"""Paths of the reference system's framework layer."""
