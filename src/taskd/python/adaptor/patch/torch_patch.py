"""The reference system's name for the hook."""

from taskd.launcher.torch.seam import apply as patch_torch_method

__all__ = ["patch_torch_method"]
