"""The ``taskd`` command: run, status, timeline, logs, stop, inject."""
