"""The worker's functions; what they do is in :mod:`taskd.worker.legacy`."""

from taskd.worker.legacy import destroy_taskd_worker, init_taskd_worker, start_taskd_worker

__all__ = ["destroy_taskd_worker", "init_taskd_worker", "start_taskd_worker"]
