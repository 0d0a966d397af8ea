"""``run_log``, under the path of the reference system: the logger named ``taskd``, set by the environment."""

import os

from taskd.kit.runlog import Settings, configure

__all__ = ["run_log"]

run_log = configure(Settings.from_environ(os.environ))
