"""What a training script imports.

``join`` tells TaskD that this process takes part; from then on its steps show in ``taskd status``, faults can
be injected at a step, and a recovery knows when the job is as far as it was. Without a launcher of TaskD the
same script runs as it is.
"""

from taskd.train.session import Job, join

__all__ = ["Job", "join"]
