"""The process that ``taskd run`` and a patched torchrun become."""

from taskd.core.launch import LaunchSpec


def run(spec: LaunchSpec) -> int:
    """Run a job to its end; returns the exit code."""
    from taskd.launcher.forerunner import send_ahead

    # Before the launcher itself is imported: what takes longest begins first.
    forerunner = send_ahead(spec)
    from taskd.launcher.launcher import run_job

    return run_job(spec, forerunner)
