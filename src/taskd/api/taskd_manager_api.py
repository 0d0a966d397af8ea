"""The manager's functions; what they do is in :mod:`taskd.manager.legacy`."""

from taskd.manager.legacy import init_taskd_manager, start_taskd_manager

__all__ = ["init_taskd_manager", "start_taskd_manager"]
