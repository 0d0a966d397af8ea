"""The job's brain: one process per job."""
