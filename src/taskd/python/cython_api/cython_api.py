"""The handle to libtaskd.so, under the path that images of the reference system import.

The library is optional here (see native/libtaskd.c). So a missing one costs a log line with the command to
paste, and everything goes on. Nothing in TaskD imports this module at start-up.
"""

import ctypes
import logging
from pathlib import Path

__all__ = ["LIBRARY", "NOT_LOADED", "lib", "load_library", "preloaded"]

LIBRARY = Path(__file__).parent / "libs" / "libtaskd.so"
NOT_LOADED = "the libtaskd.so has not been loaded"

_log = logging.getLogger("taskd")


def load_library(path: Path = LIBRARY) -> ctypes.CDLL | None:
    """Load the library, or log why not, with the line to paste, and return ``None``."""
    try:
        library = ctypes.CDLL(str(path))
        library.taskd_version.restype = ctypes.c_char_p
        library.taskd_version.argtypes = []
    except (OSError, AttributeError) as error:
        _log.warning(
            "%s (%s). TaskD goes on without it. To load it, install taskd where a C compiler is present;"
            " then: export LD_PRELOAD=%s:$LD_PRELOAD",
            NOT_LOADED,
            error,
            path,
        )
        return None
    return library


def preloaded() -> bool:
    """Tell whether this process was started with the library in LD_PRELOAD."""
    try:
        ctypes.c_int.in_dll(ctypes.CDLL(None), "taskd_preload_marker")
    except ValueError:
        return False
    return True


lib = load_library()
