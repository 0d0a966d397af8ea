"""What a training script imports.

``join`` tells TaskD that this process takes part; from then on its steps show in ``taskd status``, faults can
be injected at a step, and a recovery knows when the job is as far as it was. Without a launcher of TaskD the
same script runs as it is.
"""

from typing import Any

from taskd.train.session import Job, join

__all__ = ["Job", "ShardedOptimizer", "join"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class of the framework that the script has loaded
    """Load what needs PyTorch when it is asked for."""
    if name == "ShardedOptimizer":
        from taskd.train.torch.zero import ShardedOptimizer

        return ShardedOptimizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
