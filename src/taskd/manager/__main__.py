"""Start a manager: ``python -m taskd.manager`` with its configuration in TASKD_ROLE_CONFIG."""

import sys

from taskd.core.exits import ExitCode
from taskd.kit.lifeline import Lifeline
from taskd.kit.logs import open_log
from taskd.kit.papers import PapersError
from taskd.kit.roles import read_config, run_role
from taskd.links.rpc import AddressInUse
from taskd.manager.config import ManagerConfig
from taskd.manager.service import serve


async def main() -> int:
    """Manage the job to its end."""
    config = read_config(ManagerConfig)
    lifeline = Lifeline()
    log = open_log(config.log_file, role="manager", job=config.job)
    try:
        await serve(config, log, lifeline)
    except (AddressInUse, PapersError) as error:
        lifeline.say(fatal=str(error))
        sys.stderr.write(f"taskd: {error}\n")
        return ExitCode.USAGE
    return ExitCode.OK


run_role(main)
