"""AscendJob, decided by pure functions: what a job means, which objects it needs, what happens next.

The controller reads the cluster, hands a snapshot to `decide`, and carries out what comes back. Nothing here
looks at a clock, a socket or a random number: time is an argument.
"""
