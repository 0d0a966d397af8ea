"""Where a training thread is: its stack, taken by the watch's thread when the agent asks.

Only the process itself knows its Python stack, and while its training thread is stuck the watch's thread
still runs (a thread that holds the interpreter in C keeps it from that; then the silence is the answer).
The stack goes whole into the rank's log directory, where people look, and in short beside the page, where
the agent looks.
"""

import linecache
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType

from taskd.kit.whereabouts import Where

MAX_STACK = 4000
WAITING_IN = (
    "torch/distributed/",
    "torch/autograd/",
    "torch/futures/",
    "torch/nn/parallel/distributed.py",
    "taskd/train/torch/works.py",
    "taskd/train/torch/ballots.py",
    "taskd/train/torch/voting.py",
)
_OWN = str(Path(__file__).resolve().parent.parent)


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
    import sysconfig  # here: start-up time is recovery time

    paths = sysconfig.get_paths()
    packages, library = (paths["purelib"], paths["platlib"]), paths["stdlib"]
    walk: FrameType | None = frame
    packaged: FrameType | None = None
    while walk is not None:
        file = walk.f_code.co_filename
        if file.startswith(packages):
            packaged = packaged or walk
        elif not file.startswith(("<", library, _OWN)):
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
