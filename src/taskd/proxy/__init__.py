"""The relay of a container."""
