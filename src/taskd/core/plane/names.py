"""The words of the control plane's wire: signals, actions, strategies, codes, labels.

All of them are facts of the reference system; none may be respelled, also those with blanks in them.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final


class SignalType(StrEnum):
    """What a signal to a manager is about."""

    KEEP_ALIVE = "keep-alive"
    KILL_MASTER = "killMaster"
    STOP_TRAIN = "stopTrain"
    GLOBAL_FAULT = "globalFault"
    CHANGE_STRATEGY = "changeStrategy"
    SAVE_AND_EXIT = "saveAndExit"
    HOT_SWITCH = "hot-switch"
    PRE_EXIT = "preExitProcess"


class Action(StrEnum):
    """What the manager shall do, in this order."""

    STOP_TRAIN = "stop_train"
    ON_GLOBAL_RANK = "on_global_rank"
    CHANGE_STRATEGY = "change_strategy"
    SAVE_AND_EXIT = "save_and_exit"
    NODES_EXIT = "fault_nodes_exit"
    NODES_RESTART = "fault_nodes_restart"
    HOT_SWITCH = "hot switch"
    STOP_SWITCH = "stop switch"
    NEW_POD_RUNNING = "new pod running"
    PRE_EXIT = "pre exit process"


class Strategy(StrEnum):
    """What a job may allow; the order is that in which they are tried."""

    RETRY = "retry"
    IN_PLACE = "recover-in-place"
    RECOVER = "recover"
    ELASTIC = "elastic-training"
    DUMP = "dump"
    EXIT = "exit"


class Change(StrEnum):
    """What `changeStrategy` may say, and what trainers offer and report."""

    NONE = ""
    RETRY = "retry"
    RECOVER = "recover"
    DUMP = "dump"
    EXIT = "exit"
    MIGRATION = "migration"


IN_PLACE_PARAMS: Final = "recover-in-place"
EXIT_PARAMS: Final = "dump_exit"


class Code(IntEnum):
    """The codes of answers and reports."""

    OK = 0
    SUCCESS = 200
    NOT_REGISTERED = 400
    ORDER_MIX = 401
    NO_SUCH_JOB = 402
    RECOVERY_OFF = 403
    NOT_READY = 404
    RETRY_RECOVERABLE = 405
    RETRY_UNRECOVERABLE = 406
    DUMP_FAILED = 407
    NOT_INITIALISED = 408
    BAD_PARAMETER = 409
    BAD_RATE = 410
    OPERATION_RUNNING = 411
    BAD_OPERATION = 413
    RATE_LIMITED = 429
    CLIENT_ERROR = 499
    TOO_MANY_JOBS = 500
    CONFIG_MAP_FAILED = 501
    POD_GROUP_FAILED = 502
    SERVER_ERROR = 599


class RecoverStatus(StrEnum):
    """The outcome, as the annotation `ProcessRecoverStatus` says it."""

    RETRY_OK = "retry-success"
    RETRY_FAILED = "retry-failed"
    RECOVER_OK = "recover-success"
    RECOVER_FAILED = "recover-failed"
    DUMP_OK = "dump-success"
    DUMP_FAILED = "dump-failed"
    EXITED = "exit-completed"


class Level(StrEnum):
    """The levels of device faults that make a difference here."""

    NOT_HANDLED = "NotHandleFault"
    PRE_SEPARATE = "PreSeparateNPU"
    SUB_HEALTH = "SubHealthFault"
    RESTART_REQUEST = "RestartRequest"
    RESTART_BUSINESS = "RestartBusiness"


PASSING_LEVELS: Final = frozenset({Level.RESTART_REQUEST.value, Level.RESTART_BUSINESS.value})
"""A device with no worse faults can go on where it is, once they are gone."""
QUIET_LEVELS: Final = frozenset({Level.NOT_HANDLED.value, Level.PRE_SEPARATE.value})

# Labels and annotations that the plane writes; what it reads is in `policy`.
RECOVER_SWITCH: Final = "process-recover-enable"
RECOVER_STATUS: Final = "ProcessRecoverStatus"
FAULT_TYPE: Final = "fault-type"
ON: Final = "on"
PAUSE: Final = "pause"
SOFTWARE: Final = "software"
RETRY_FAULT: Final = "retry-fault"

NETWORK_TIMEOUT_S: Final = 33
"""How long a trainer may take after a network fault: 3 s for new routes and 30 s to repeat the step."""
