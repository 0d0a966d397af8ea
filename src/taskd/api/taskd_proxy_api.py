"""The proxy's functions; what they do is in :mod:`taskd.proxy.legacy`."""

from taskd.proxy.legacy import destroy_taskd_proxy, init_taskd_proxy

__all__ = ["destroy_taskd_proxy", "init_taskd_proxy"]
