"""The files in which a rank tells its agent where it is. What is in them is the worker's to find out."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

STACK_FILE = "stack.txt"


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
