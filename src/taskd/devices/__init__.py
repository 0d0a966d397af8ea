"""Ascend, NVIDIA and CPU devices behind one protocol."""
