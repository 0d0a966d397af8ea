"""The agent's functions; what they do is in :mod:`taskd.agent.legacy`."""

from taskd.agent.legacy import init_taskd_agent, register_func, start_taskd_agent

__all__ = ["init_taskd_agent", "register_func", "start_taskd_agent"]
