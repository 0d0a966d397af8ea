"""Hooks into the frameworks."""
