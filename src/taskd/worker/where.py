"""Where a training thread is: its stack, taken by the watch's thread when the agent asks.

Only the process itself knows its Python stack, and while its training thread is stuck the watch's thread
still runs (a thread that holds the interpreter in C keeps it from that; then the silence is the answer).
The stack goes whole into the rank's log directory, where people look, and in short beside the page, where
the agent looks.
"""

import json
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType

MAX_STACK = 4000
FILE_NAME = "stack.txt"
WAITING_IN = ("torch/distributed/", "torch/autograd/", "torch/nn/parallel/distributed.py")
_LIBRARY = sysconfig.get_paths()["stdlib"]
_PACKAGES = (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"])
_OWN = str(Path(__file__).resolve().parent.parent)


@dataclass(frozen=True, slots=True)
class Where:
    """A rank's answer. ``number`` is the question's; ``last`` marks the last words of a process that ends."""

    number: int
    call: str = ""
    line: str = ""
    waiting: bool = False
    groups: Mapping[str, int] = field(default_factory=dict)
    stack: str = ""
    file: str = ""
    last: bool = False


def answer_path(page: str) -> str:
    """Name the file beside a page in which its worker answers."""
    return f"{page}.where"


def read_answer(page: str) -> Where | None:
    """Read the last answer; None if there is none that can be read."""
    try:
        return Where(**json.loads(Path(answer_path(page)).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_answer(page: str, where: Where) -> None:
    """Write an answer in one move."""
    draft = f"{answer_path(page)}.new"
    Path(draft).write_text(json.dumps(asdict(where)), "utf-8")
    Path(draft).replace(answer_path(page))


def look_at(thread: int, number: int, groups: Mapping[str, int], file: str, *, last: bool = False) -> Where:
    """Take a thread's stack; the whole of it is written to ``file`` if there is one."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the documented way to another thread's stack
    if frame is None:
        return Where(number, "a thread that has ended", groups=groups, last=last)
    stack = "".join(traceback.format_stack(frame))
    if file:
        try:
            Path(file).write_text(_whole(thread), "utf-8")
        except OSError:
            file = ""
    code, number_of_line = _speaking(frame)
    return Where(
        number=number,
        call=f"{code.co_name} ({os.path.basename(code.co_filename)}:{number_of_line})",  # noqa: PTH119
        line=f"{code.co_filename}:{number_of_line}",
        waiting=any(part in frame.f_code.co_filename for part in WAITING_IN),
        groups=groups,
        stack=stack[-MAX_STACK:],
        file=file,
        last=last,
    )


def _speaking(frame: FrameType) -> tuple[CodeType, int]:
    """Choose the frame that says most: the script's own code, else torch's, else the innermost."""
    walk: FrameType | None = frame
    packaged: FrameType | None = None
    while walk is not None:
        file = walk.f_code.co_filename
        if file.startswith(_PACKAGES):
            packaged = packaged or walk
        elif not file.startswith(("<", _LIBRARY, _OWN)):
            return walk.f_code, walk.f_lineno
        walk = walk.f_back
    chosen = packaged or frame
    return chosen.f_code, chosen.f_lineno


def _whole(thread: int) -> str:
    """Lay out the stacks of all threads, the training thread's first."""
    linecache.checkcache()
    parts = []
    frames = sys._current_frames()  # noqa: SLF001 - as above
    for each in sorted(frames, key=lambda ident: ident != thread):
        title = "training thread" if each == thread else f"thread {each}"
        parts.append(f"{title}, innermost call last:\n{''.join(traceback.format_stack(frames[each]))}")
    return "\n".join(parts)
