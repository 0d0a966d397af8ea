"""Faults of a cluster: what comes in from outside, what it means for each job, and what is told of it.

`observe` in `centre` is the one decision; the modules beside it hold one rule or one format each. Nothing
here reads a clock: time comes in as seconds since the epoch, and "when to look again" goes out as a value.
"""
