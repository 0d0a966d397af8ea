"""The file in which a failing worker leaves its last words.

Exit codes say that a rank failed, not why. torch elastic has a format for the reason, which its ``@record``
decorator writes and its users' tools read, so ours is the same with two keys more: where in the user's
code it happened, and when, precisely enough to tell the first failure of a job from those it caused.

Whoever comes first wins: a file that exists is never replaced.
"""

# Pathlib is start-up time of every worker.
# ruff: noqa: PTH103, PTH105, PTH108, PTH109, PTH110, PTH118, PTH119, PTH120, PTH123

import json
import os
import re
import sys
import time
import traceback
from dataclasses import dataclass

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>\S+))?', re.MULTILINE)
_INSTALLED = ("site-packages", "dist-packages")
# torch stamps whole seconds; the file's own time is finer, and believed if it is about the same moment.
_SAME_MOMENT_S = 2.0


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Why a worker failed. ``stamp`` is wall time; fields that nobody knows are empty or 0."""

    message: str
    place: str = ""
    stamp: float = 0.0
    traceback: str = ""


def write_error_file(path: str, error: BaseException, *, root: str = "") -> bool:
    """Describe an exception in a file, atomically; False if the file was there before.

    ``root`` is the directory of the user's program: with the working directory it tells the user's frames
    from those of libraries.
    """
    stamp = time.time()
    text = "".join(traceback.format_exception(error))
    frames = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    report = {
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {"py_callstack": text, "timestamp": str(int(stamp))},
        },
        "place": compute_place(frames, (root, os.getcwd())),
        "stamp": stamp,
    }
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    draft = f"{path}.{os.getpid()}.tmp"
    with open(draft, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(report, file)
    try:
        os.link(draft, path)  # Unlike a rename this fails where a file is, without a moment in between.
    except FileExistsError:
        return False
    except OSError:  # A file system without hard links.
        if os.path.exists(path):
            return False
        os.replace(draft, path)
        return True
    finally:
        if os.path.exists(draft):
            os.unlink(draft)
    return True


def read_error_file(path: str) -> ErrorReport | None:
    """Read what a worker left, in our format or in torch's; None if there is nothing readable."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            data = json.load(file)
            written = os.fstat(file.fileno()).st_mtime
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict):
        return None
    body = data.get("message", "")
    inner = body if isinstance(body, dict) else {"message": body}
    extra = inner.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    text = str(extra.get("py_callstack", ""))
    stamp = _number(data.get("stamp"))
    if not stamp:
        told = _number(extra.get("timestamp"))
        stamp = written if not told or abs(written - told) < _SAME_MOMENT_S else told
    place = data.get("place")
    if not isinstance(place, str):
        frames = [(m["file"], int(m["line"]), m["name"] or "") for m in _FRAME.finditer(text)]
        place = compute_place(frames, ())
    return ErrorReport(str(inner.get("message", "")), place, stamp, text)


def compute_place(frames: list[tuple[str, int, str]], roots: tuple[str, ...]) -> str:
    """Name the innermost frame in the user's code: below a root and not installed; else the last one."""
    if not frames:
        return ""
    library = os.path.join(sys.base_prefix, "lib") + os.sep
    for file, line, name in reversed(frames):
        if any(part in file for part in _INSTALLED) or file.startswith((library, "<")):
            continue
        for root in roots:
            if root and file.startswith(os.path.join(root, "")):
                return f"{os.path.relpath(file, root)}:{line} in {name}"
        if not roots:
            return f"{os.path.basename(file)}:{line} in {name}"
    file, line, name = frames[-1]
    return f"{file}:{line} in {name}"


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, (int, float, str)) else 0.0
    except ValueError:
        return 0.0
