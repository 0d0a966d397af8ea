"""Importing this turns ``torchrun`` into TaskD's launcher.

Images insert ``import taskd.python.adaptor.patch`` in front of every ``import os`` line of torch's run.py, so
it may be imported any number of times.
"""

from taskd.launcher.torch.seam import apply

__all__ = ["apply"]

apply()
