"""The page in which a worker writes how far it is."""

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.heartbeat import (
    F_MAGIC,
    F_PID,
    F_PLACE,
    F_STATE,
    F_STEP,
    FIELDS,
    MAGIC,
    SIZE_BYTES,
    BeatState,
    BeatView,
    blank,
    parse_page,
)
from taskd.core.testimony import Place


def test_a_page_that_no_worker_touched_says_so() -> None:
    """New, with its generation, no process and no step."""
    assert BeatView(7, 0, BeatState.NEW, -1, 0, 0) == parse_page(blank(7))
    assert SIZE_BYTES == 8 * len(blank(7))


def test_what_a_worker_wrote_is_read() -> None:
    """Process, state and step, while the rest stays."""
    fields = blank(3)
    fields[F_PID], fields[F_STATE], fields[F_STEP] = 4711, BeatState.JOINED, 12

    view = parse_page(fields)

    assert view is not None
    assert (3, 4711, BeatState.JOINED, 12) == (view.generation, view.pid, view.state, view.step)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=FIELDS + 2))
def test_anything_else_is_no_page(fields: list[int]) -> None:
    """Foreign bytes, too few of them or a state that does not exist: None, and never an error."""
    view = parse_page(fields)

    known = len(fields) >= FIELDS and fields[F_STATE] in list(BeatState) and fields[F_PLACE] in list(Place)
    if not known or fields[F_MAGIC] != MAGIC:
        assert view is None


@given(st.integers(-100, 100))
def test_an_unknown_state_is_no_page(state: int) -> None:
    """A page of another version is not misread."""
    fields = blank(1)
    fields[F_STATE] = state

    assert (state in list(BeatState)) == (parse_page(fields) is not None)
