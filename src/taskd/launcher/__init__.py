"""The process that ``taskd run`` and a patched torchrun become."""

from taskd.core.launch import LaunchSpec


def run(spec: LaunchSpec) -> int:
    """Run a job to its end; returns the exit code."""
    from taskd.launcher.launcher import run_job

    return run_job(spec)
