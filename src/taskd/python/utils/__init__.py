"""Paths of the reference system's shared tools."""
