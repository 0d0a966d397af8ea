"""The figures of recovery: what a fault costs under TaskD and under others, on one workload."""
