"""What a rank tells the manager of an error in one of its steps."""

from taskd.core.messages import Trouble
from taskd.core.troubles import classify

ERROR_LENGTH = 300


class Replay(Exception):
    """The step must be computed again: not every rank holds its gradient."""


def describe_trouble(error: Exception, generation: int, rank: int, step: int) -> Trouble:
    """Say what it was, where, and of which kind."""
    kind = classify(type(error).__name__, str(error))
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next  # by hand: a traceback object would read sources, and somebody waits
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    what = f"{type(error).__name__}: {error}"[:ERROR_LENGTH]
    return Trouble(generation, rank, step, what, place, kind.value)
