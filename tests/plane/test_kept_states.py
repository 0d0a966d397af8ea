"""The kept state of a job is text in the cluster: whatever it has become, the job has a desk."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskd.core.plane.faultlists import Shape
from taskd.core.plane.names import SignalType
from taskd.core.plane.resuming import why_absurd
from taskd.core.plane.state import Episode, JobState, Phase, Signal
from taskd.testing.plane import MemoryCluster
from tests.core.plane.scenes import policy
from tests.plane.player import FakeManager, plane_for, ranks

JOB = "job-0001"
SHAPE = Shape(2, 8)
MADE: dict[Any, st.SearchStrategy[Any]] = {
    int: st.sampled_from([-1, 0, 1, 7, 15, 16, 10**9]),
    float: st.sampled_from([-1e12, 0.0, 1.0, time.time(), 1e12, 1e300]),
    str: st.sampled_from(["", "uid-1", "x" * 100, "🙂"]),
    bool: st.booleans(),
}
TOLD_ANEW = ("policy", "limits", "pods", "devices", "slow")
"""Of a kept state these are not used: the cluster says them again."""


def value_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, of the kind that does harm."""
    if hint in MADE:
        return MADE[hint]
    origin: Any = get_origin(hint)
    inner: Any = get_args(hint)
    if origin is tuple:
        return st.lists(value_of(inner[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(value_of(inner[0]), value_of(inner[1]), max_size=2)
    return st.sampled_from(list(hint))


def changed(base: Any, *fixed: str) -> st.SearchStrategy[Any]:
    """A value with some of its fields drawn anew."""
    hints = {name: hint for name, hint in get_type_hints(type(base)).items() if name not in fixed}
    fields = st.fixed_dictionaries({}, optional={name: value_of(hint) for name, hint in hints.items()})
    return fields.map(lambda drawn: replace(base, **drawn))


@st.composite
def states(draw: st.DrawFn) -> JobState:
    episode = draw(st.none() | changed(Episode("U1", 1.0, "it broke")))
    signal = draw(st.none() | changed(Signal("U1", SignalType.STOP_TRAIN)))
    shape = draw(st.sampled_from([SHAPE, SHAPE, SHAPE, Shape(0, 0), Shape(1, 10**9)]))
    base = JobState(JOB, policy("retry,recover,dump"), shape, episode=episode, outstanding=signal)
    state: JobState = draw(changed(base, "job_id", "shape", "episode", "outstanding", *TOLD_ANEW))
    return state


def drawn(count: int) -> list[bytes]:
    found: list[bytes] = []

    @given(states())
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    def collect(state: JobState) -> None:
        found.append(msgspec.json.encode(state))

    collect()
    return found


async def test_no_kept_state_takes_a_job_its_desk(caplog: pytest.LogCaptureFixture) -> None:
    """Well-typed and absurd: the plane starts, the job is served, and no report is answered with an error."""
    cluster = MemoryCluster()
    jobs = {f"job-{number:05}": data for number, data in enumerate(drawn(100))}
    for job_id, data in jobs.items():
        cluster.add_job(job_id, "retry,recover,dump")
        cluster.states[job_id] = data.replace(JOB.encode(), job_id.encode())
    for job_id, data in (("no-json", b"{"), ("another", next(iter(jobs.values())))):
        cluster.add_job(job_id)
        cluster.states[job_id] = data
    with structlog.testing.capture_logs() as logs:
        async with plane_for(cluster) as plane:
            assert [] == [job_id for job_id in cluster.states if plane.office.desk(job_id) is None]
            for job_id in jobs:
                manager = FakeManager(plane.port, job_id)
                await manager.join()
                answers = [
                    await manager.report("ReportProcessFault", faultRanks=ranks("1:1")),
                    await manager.report("ReportStopComplete", status={}),
                    await manager.report("ReportRecoverStrategy", strategies=["recover", "exit"]),
                    await manager.report("ReportRecoverStatus", status={}, strategy="recover"),
                ]
                await manager.close()
                assert {each.code for each in answers} <= {0, 401, 402}, answers

    assert [] == [each for each in logs if each["event"] == "failed"]
    assert {"no-json", "another"} <= {each["job"] for each in logs if each["event"] == "state_unreadable"}
    assert [] == [each.getMessage() for each in caplog.records if each.levelname in {"ERROR", "CRITICAL"}]


def test_what_a_plane_keeps_is_not_absurd() -> None:
    """The phases with an episode have one, and what it names is there."""
    state = JobState(JOB, policy("recover"), SHAPE)
    episode = Episode("U1", 1.0, "it broke", devices=(15,), leaving=(1,))
    recovering = replace(state, phase=Phase.RECOVERING, episode=episode, deadline=900.0)

    assert ("", "") == tuple(why_absurd(each, JOB, SHAPE, 0.0) for each in (state, recovering))
    strange = replace(recovering, episode=replace(episode, leaving=(2,)))
    assert "it names pod 2; the job has 2" == why_absurd(strange, JOB, SHAPE, 0.0)
    lost = replace(recovering, episode=None)
    assert "it is in phase recovering without an episode" == why_absurd(lost, JOB, SHAPE, 0.0)
