"""A schedule of faults is read as written, or refused with its line."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.faultfile import FaultFileError, parse_faults
from taskd.core.launch import FaultKind, ScheduledFault

GOOD = """
# the first two steps are left alone
{"step": 20, "rank": 1, "kind": "kill"}

  {"step": 30, "node": 0, "kind": "hang"}
{"step": 40, "role": "manager", "kind": "kill"}
{"step": 50, "rank": 2, "kind": "exit", "code": 3}
"""


def test_a_schedule_keeps_its_order_and_names_faults_by_line() -> None:
    """Blank lines and comments count as lines but are no faults."""
    expected = (
        ScheduledFault("file-3", FaultKind.KILL, rank=1, step=20),
        ScheduledFault("file-5", FaultKind.HANG, node=0, step=30),
        ScheduledFault("file-6", FaultKind.KILL, role="manager", step=40),
        ScheduledFault("file-7", FaultKind.EXIT, rank=2, step=50, code=3),
    )

    assert expected == parse_faults(GOOD)


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "\r\n"])
def test_an_empty_schedule_has_no_faults(text: str) -> None:
    """Nothing to do is not a mistake."""
    assert () == parse_faults(text)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("kill rank 1", "JSON"),
        ("[1, 2]", "a list"),
        ("true", "true or false"),
        ('{"rank": 1, "kind": "kill"}', '"step" is missing'),
        ('{"step": 1, "rank": 1}', '"kind" is missing'),
        ('{"step": 1, "rank": 1, "kind": "explode"}', '"explode"'),
        ('{"step": 1, "rank": 1, "kind": ["kill"]}', '"kind" is one of'),
        ('{"step": 1, "kind": "kill"}', "found none"),
        ('{"step": 1, "rank": 1, "node": 0, "kind": "kill"}', "rank and node"),
        ('{"step": 1, "role": "worker", "kind": "kill"}', "manager, proxy, agent"),
        ('{"step": 1, "node": 0, "kind": "raise"}', "inside a training process"),
        ('{"step": 1, "rank": 0, "kind": "kill", "code": 3}', '"code" belongs'),
        ('{"step": 1, "rank": 0, "kind": "exit", "code": 256}', "0 to 255"),
        ('{"step": -1, "rank": 0, "kind": "kill"}', '"step" is a whole number'),
        ('{"step": 1.5, "rank": 0, "kind": "kill"}', '"step" is a whole number'),
        ('{"step": true, "rank": 0, "kind": "kill"}', '"step" is a whole number'),
        ('{"step": 1, "rank": "0", "kind": "kill"}', '"rank" is a whole number'),
        ('{"step": 1, "rank": 0, "kind": "kill", "when": 3}', '"when"'),
        ("[" * 100_000, "JSON"),
    ],
)
def test_a_mistake_is_named_with_its_line(line: str, word: str) -> None:
    """The sentence holds the line's number and what is wrong in it."""
    with pytest.raises(FaultFileError) as caught:
        parse_faults(f"# head\n{line}\n")

    assert 2 == caught.value.line
    assert word in caught.value.why


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    """Whatever is in the file, the answer is a schedule or a FaultFileError."""
    with contextlib.suppress(FaultFileError):
        parse_faults(text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(list(FaultKind)),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)
KEYS = st.sampled_from(["step", "kind", "rank", "node", "role", "code", "other"])


@given(st.lists(st.dictionaries(KEYS, JSON), max_size=4))
def test_no_object_breaks_the_parser(entries: list[dict[str, object]]) -> None:
    """Values of any type under the known keys are parsed or refused, never half taken."""
    try:
        faults = parse_faults("\n".join(json.dumps(entry) for entry in entries))
    except FaultFileError:
        return

    assert len(entries) == len(faults)
    for fault in faults:
        assert fault.step >= 0
        assert 1 == (fault.rank >= 0) + (fault.node >= 0) + (fault.role != "")
