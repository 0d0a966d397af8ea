"""Build hook: compile libtaskd.so where there is a C compiler.

The library is needed only by start scripts that preload it, so a machine without a compiler still gets a
working package: the wheel is then pure Python, and a warning says what is missing.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "native/libtaskd.c"
INSTALLED = "taskd/python/cython_api/libs/libtaskd.so"
TARGET = f"src/{INSTALLED}"
# No libc and no start-up code: the library loads under any C library and does nothing when it does.
FLAGS = ("-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-nostdlib", "-Wall", "-Wextra", "-Werror")
COMPILE_TIMEOUT_S = 60


class NativeBuildHook(BuildHookInterface[Any]):
    """Puts the compiled library into the wheel and gives the wheel its platform tag."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files of the wheel are collected."""
        target = Path(self.root, TARGET)
        problem = self._compile(target)
        if problem:
            # What an earlier build left may belong to another version: better none than a wrong one.
            target.unlink(missing_ok=True)
            self.app.display_warning(
                f"libtaskd.so was not built: {problem}. TaskD works without it; only an LD_PRELOAD line "
                f"that names it does nothing."
            )
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
        if version == "editable":
            # `pip show taskd` names site-packages as the location of an editable install too, and start
            # scripts look for the library below it.
            build_data["force_include_editable"][str(target)] = INSTALLED
        else:
            build_data["artifacts"].append(TARGET)

    def _compile(self, target: Path) -> str:
        """Return what went wrong, or nothing."""
        if sys.platform != "linux":
            return f"LD_PRELOAD is a Linux feature and this is {sys.platform}"
        compiler = self._find_compiler()
        if not compiler:
            return "no C compiler found (cc, gcc, clang or $CC)"
        target.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: a running process may have the old file mapped.
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        command = [
            *compiler,
            *FLAGS,
            f'-DTASKD_VERSION="{self.metadata.version}"',
            "-o",
            str(fresh),
            str(Path(self.root, SOURCE)),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
            fresh.replace(target)
        except subprocess.CalledProcessError as error:
            return f"{shlex.join(command)} failed: {error.stderr.strip()}"
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{shlex.join(command)} failed: {error}"
        finally:
            fresh.unlink(missing_ok=True)
        return ""

    def _find_compiler(self) -> list[str]:
        chosen = shlex.split(os.environ.get("CC", ""))
        if chosen:
            return chosen
        return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), [])
