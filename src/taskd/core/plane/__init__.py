"""The recovery of one job as the cluster's control plane decides it.

`machine.step` is the one entrance: state and event in, state and effects out. The modules beside it hold one
part each: `policy` what the job allows, `faultlists` what is reported, `choice` which strategy, `course` the
way from a fault to its end, `switching` the hot switch, `resetconfig` the file that agents read.
"""
