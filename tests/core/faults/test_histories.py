"""Properties of the fault centre over histories that nobody wrote by hand."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.faults.centre import observe_all
from taskd.core.faults.codes import AIC, HCCL_RETRY, LINK_DOWN, UCE
from taskd.core.faults.deviceinfo import read_device_info
from taskd.core.faults.events import (
    DeviceInfoSeen,
    Event,
    GivenUp,
    JobSeen,
    NodeInfoSeen,
    NodeSeen,
    PolicySeen,
    PublicReported,
    RetryEnded,
    RetryReported,
    TimePassed,
)
from taskd.core.faults.levels import Level, NodeLevel, effect_of
from taskd.core.faults.nodeinfo import Hardware, HardwareFault
from taskd.core.faults.nodesight import Complaint, NodeSight
from taskd.core.faults.places import JobSight
from taskd.core.faults.policy import Filters, Separation
from taskd.core.faults.public import Assertion, PublicFault, PublicKind, PublicReport
from taskd.core.faults.state import State
from taskd.core.faults.view import Health, JobFaults

from .scenes import T0, Centre, device_info, fault, pod, switch_info

NODES = ["n1", "n2", "n3"]
LEVELS = st.sampled_from(list(Level))
PLAIN = st.sampled_from(["A", "B", "C"])


@st.composite
def device_faults(draw: st.DrawFn, codes: st.SearchStrategy[str]) -> list[dict[str, Any]]:
    chips = draw(st.lists(st.tuples(st.integers(0, 3), codes), max_size=3, unique=True))
    return [fault(chip, code, draw(LEVELS), T0 + draw(st.integers(-20, 0))) for chip, code in chips]


def seen(node: str, faults: list[dict[str, Any]], **more: Any) -> DeviceInfoSeen:
    return DeviceInfoSeen(node, read_device_info(device_info(faults, chips=4, **more)))


def public(node: str, name: str, assertion: Assertion) -> PublicReported:
    what = PublicFault(
        "CCAE", name, PublicKind.NPU, "220001001", Level.SEPARATE, T0, assertion, ((node, (0,)),)
    )
    return PublicReported(PublicReport((what,)))


def _pool() -> list[Event]:
    """A hundred and more events; they are chosen from, since making one takes longer than taking it."""
    rng = random.Random(7)
    codes = ["A", "B", UCE, AIC, HCCL_RETRY, LINK_DOWN]
    found: list[Event] = [TimePassed()]
    found += [kind("job-a") for kind in (RetryReported, RetryEnded, GivenUp)]
    for node in NODES:
        for size in [0, 0, *range(1, 4)] * 5:
            places = rng.sample([(chip, code) for chip in range(4) for code in codes], size)
            faults = [fault(*place, rng.choice(list(Level)), T0 - rng.randrange(20)) for place in places]
            found.append(seen(node, faults))
        found += [
            seen(node, [], switch=switch_info(level="Separate")),
            seen(node, [], separated=[1]),
            NodeInfoSeen(node, None),
            NodeSeen(node, NodeSight(complaints=(Complaint("", NodeLevel.SEPARATE, "not ready"),))),
            NodeSeen(node, NodeSight(ip="10.0.0.1")),
            NodeSeen(node, None),
        ]
        for level in NodeLevel:
            found.append(NodeInfoSeen(node, Hardware((HardwareFault("CPU", 0, ("X",), level),))))
        found += [public(node, name, assertion) for name in ("F1", "F2") for assertion in Assertion]
    return found


EVENTS = st.sampled_from(_pool())
HISTORY = st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 0.5, 3.0, 12.0, 40.0, 100.0])), max_size=12)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[JobSight, ...]:
    flags = [draw(st.booleans()) for _ in range(3)]
    filters = draw(st.sampled_from([Filters(), Filters({"A": 30.0}), Filters({}, {"RestartNPU": 20.0})]))
    first = JobSight(
        "job-a", (pod(0, "n1", 4), pod(1, "n2", 4)), retry=flags[0], in_place=flags[1],
        ignores_sub_health=flags[2], filters=filters,
    )  # fmt: skip
    return first, JobSight("job-b", (pod(2, "n3", 4),))


def play(history: list[tuple[Event, float]], *sights: JobSight) -> Centre:
    centre = Centre(*sights)
    centre.take(PolicySeen(Separation(enabled=True, threshold=2)))
    for event, after in history:
        centre.take(event, after=after)
    return centre


def views(centre: Centre) -> dict[str, JobFaults]:
    return {job_id: record.view for job_id, record in centre.state.jobs.items()}


@given(HISTORY, jobs())
def test_cleared_faults_leave_nothing(
    history: list[tuple[Event, float]], sights: tuple[JobSight, ...]
) -> None:
    """When every source says that all is well and the longest time is over, all is as in the beginning."""
    centre = play(history, *sights)
    for node in NODES:
        centre.take(seen(node, [], separated=[]), NodeInfoSeen(node, None), NodeSeen(node, NodeSight(ip="x")))
        for name in ("F1", "F2"):
            centre.take(public(node, name, Assertion.RECOVER))
    centre.take(TimePassed(), after=49 * 3600)
    # What faults that belonged together meant stays with the pods; these are new ones.
    for sight in sights:
        fresh = tuple(
            type(place)(
                place.name, "new-" + place.uid, place.node, place.node_rank, place.first_rank, 4, place.chips
            )
            for place in sight.pods
        )
        centre.take(JobSeen(JobSight(sight.job_id, fresh)))

    assert {job.job_id: JobFaults(job.job_id, Health.HEALTHY, (), ()) for job in sights} == views(centre)
    for record in centre.state.nodes.values():
        assert () == record.faults
        assert [0] * 4 == [len(kept) for kept in (record.public, record.manual, record.links, record.seen)]
    assert (0, {}, {}) == (centre.state.public_count, dict(centre.state.early), dict(centre.state.node_wakes))
    assert {} == dict(centre.state.history)


@given(HISTORY, jobs())
def test_what_is_told_is_what_is_so(history: list[tuple[Event, float]], sights: tuple[JobSight, ...]) -> None:
    """Whoever keeps the last view that was told of each job has the view of the state, always."""
    centre = Centre(*sights)
    centre.take(PolicySeen(Separation(enabled=True, threshold=2)))
    for event, after in history:
        centre.take(event, after=after)
        assert views(centre) == {view.job_id: view for view in centre.told}


@given(HISTORY, jobs())
def test_views_are_sorted_and_without_doubles(
    history: list[tuple[Event, float]], sights: tuple[JobSight, ...]
) -> None:
    """And the health agrees with what is listed."""
    for view in views(play(history, *sights)).values():
        ranks = [(rank.rank, rank.kind, rank.code, rank.level) for rank in view.ranks]
        assert sorted(set(ranks)) == ranks
        for node in view.nodes:
            devices = [(int(device.device_id), device.device_type) for device in node.devices]
            assert sorted(set(devices)) == devices
            for device in node.devices:
                assert sorted(set(device.codes)) == list(device.codes)
                assert len(device.codes) == len(device.levels)
        if view.health is Health.HEALTHY:
            assert () == view.ranks


@given(st.permutations(NODES), st.data(), jobs())
def test_the_order_of_independent_faults_does_not_matter(
    order: list[str], data: st.DataObject, sights: tuple[JobSight, ...]
) -> None:
    """One by one in any order, or all at once: the same views, and the same is published."""
    reports: dict[str, Event] = {}
    for node in NODES:
        reports[node] = seen(node, data.draw(device_faults(PLAIN)))
    one, other = Centre(*sights), Centre(*sights)
    for node in NODES:
        one.take(reports[node])
    for node in order:
        other.take(reports[node])
    batch = State()
    everything = [*(JobSeen(sight) for sight in sights), *reports.values()]
    batch, changes = observe_all(batch, everything, T0)

    assert views(one) == views(other)
    assert views(one) == {job_id: job.view for job_id, job in batch.jobs.items()}
    assert one.state.nodes == other.state.nodes == batch.nodes
    assert sorted(job.job_id for job in sights) == [view.job_id for view in changes.jobs]


@given(HISTORY, jobs(), st.lists(st.floats(0.01, 30), max_size=5))
def test_looking_more_often_changes_nothing(
    history: list[tuple[Event, float]], sights: tuple[JobSight, ...], extra: list[float]
) -> None:
    """The moments that the centre asks for are all that matter: between them time changes nothing."""
    lazy = play(history, *sights)
    eager = play(history, *sights)
    for step in extra:
        before = views(eager)
        moments = [*eager.state.node_wakes.values(), *eager.state.job_wakes.values()]
        moments += [*eager.state.early.values(), *([eager.state.wake] if eager.state.wake else [])]
        quiet_until = min(moments, default=float("inf"))
        eager.take(TimePassed(), after=step)
        if eager.now < quiet_until:
            assert before == views(eager)
    lazy.take(TimePassed(), after=eager.now - lazy.now)

    assert views(lazy) == views(eager)


@given(HISTORY, EVENTS, jobs())
def test_an_event_that_is_repeated_tells_nothing_new(
    history: list[tuple[Event, float]], event: Event, sights: tuple[JobSight, ...]
) -> None:
    """Informers repeat themselves after a list."""
    centre = play(history, *sights)
    centre.take(event)
    assert () == centre.take(event).jobs


@given(device_faults(PLAIN), device_faults(PLAIN))
def test_a_view_does_not_depend_on_what_was_before(
    first: list[dict[str, Any]], last: list[dict[str, Any]]
) -> None:
    """Plain faults are a function of the last report."""
    sight = JobSight("job-a", (pod(0, "n1", 4),))
    long, short = Centre(sight), Centre(sight)
    long.take(seen("n1", first))
    long.take(seen("n1", last))
    short.take(seen("n1", last))

    assert views(short) == views(long)


@given(HISTORY, jobs())
def test_the_worst_level_rules_the_job(
    history: list[tuple[Event, float]], sights: tuple[JobSight, ...]
) -> None:
    """A job is unhealthy exactly if a rank has a fault that stops it."""
    for view in views(play(history, *sights)).values():
        stopping = [rank for rank in view.ranks if rank.level not in {Level.SUB_HEALTH, NodeLevel.SUB_HEALTH}]
        assert (view.health is Health.UNHEALTHY) == bool(stopping)
        for rank in stopping:
            if rank.level in set(Level):
                assert effect_of(Level(rank.level)) > 1
