"""Chips whose faults come back are kept apart, and let back: by time, by a person, by a switch."""

from taskd.core.faults.events import (
    Changes,
    PolicySeen,
    SeparationsSeen,
    SeparationsWritten,
    TimePassed,
)
from taskd.core.faults.places import JobSight, PodPlace
from taskd.core.faults.policy import Separation
from taskd.core.faults.state import separations
from taskd.core.faults.view import Health, JobFaults

from .scenes import NODE, OTHER, Centre, fault, job, pod

HEALTHY = JobFaults("job-a", Health.HEALTHY, (), ())


ON = PolicySeen(Separation(enabled=True, threshold=3))


def flap(centre: Centre, times: int, chip: int = 2, node: str = NODE) -> Changes:
    """A fault comes and goes, once a minute."""
    changes = Changes()
    for _ in range(times):
        centre.devices(fault(chip, "F", at=centre.now), node=node)
        changes = centre.devices(node=node, after=60)
    return changes


def test_a_chip_whose_fault_comes_back_is_kept_apart() -> None:
    """Half a minute after the third time within the window; it has a fault without a code then."""
    centre = Centre(job())
    centre.take(ON)
    flap(centre, 2)
    assert {} == separations(centre.state)
    centre.devices(fault(2, "F", at=centre.now))
    centre.devices(after=29.9)
    assert {} == separations(centre.state)
    changes = centre.take(TimePassed(), after=0.1)

    assert changes.separations
    assert [(NODE, 2, "F")] == list(separations(centre.state))
    assert [(2, "1", "")] == centre.ranks()
    assert Health.UNHEALTHY == centre.view().health


def test_a_fault_counts_once_however_many_jobs_it_may_concern() -> None:
    """Two pods that do not say which chips they have."""
    unsure = [JobSight(f"job-{name}", (PodPlace(name, name, NODE, 0, 0, 1),)) for name in "ab"]
    centre = Centre(*unsure)
    centre.take(ON)
    flap(centre, 2)
    assert {} == separations(centre.state)
    flap(centre, 1)
    assert 1 == len(separations(centre.state))


def test_it_is_let_back_when_its_time_is_over() -> None:
    """By itself after 48 hours, and what was counted counts no more."""
    centre = Centre(job())
    centre.take(ON)
    flap(centre, 3)
    changes = centre.take(TimePassed(), after=48 * 3600)

    assert changes.separations
    assert {} == separations(centre.state)
    assert HEALTHY == centre.view()
    assert {} == dict(centre.state.history)


def test_a_fault_of_the_program_does_not_count_against_chips() -> None:
    """The same fault on another chip of the job within half a minute is one."""
    centre = Centre(job())
    centre.take(ON)
    for _ in range(5):
        centre.devices(fault(2, "F", at=centre.now))
        centre.devices(fault(3, "F", at=centre.now + 20), node=OTHER, after=20)
        centre.devices(node=OTHER, after=40)
        centre.devices()

    assert {} == separations(centre.state)


def test_what_a_person_deletes_is_let_back() -> None:
    """And only that: an entry that is not written yet is not taken for deleted."""
    centre = Centre(job())
    centre.take(ON)
    flap(centre, 3)
    assert () == centre.take(SeparationsSeen({})).jobs, "not written yet"
    centre.take(SeparationsWritten(frozenset(separations(centre.state))))
    changes = centre.take(SeparationsSeen({}))

    assert changes.separations
    assert {} == separations(centre.state)
    assert "a person let it back" in changes.notes[0].text
    flap(centre, 2)
    assert {} == separations(centre.state), "what was counted before counts no more"


def test_entries_can_be_deleted_one_after_the_other() -> None:
    """What stays in the list stays known as written."""
    centre = Centre(job())
    centre.take(ON)
    flap(centre, 3, chip=2)
    flap(centre, 3, chip=5)
    kept = separations(centre.state)
    centre.take(SeparationsWritten(frozenset(kept)))
    first, second = kept
    centre.take(SeparationsSeen({second: kept[second]}))
    assert [second] == list(separations(centre.state))
    assert not centre.take(SeparationsSeen({second: kept[second]})).separations
    centre.take(SeparationsSeen({}))
    assert [] == list(separations(centre.state))
    assert first != second


def test_an_entry_that_a_person_broke_stays() -> None:
    """What cannot be read cannot be meant."""
    centre = Centre(job())
    centre.take(ON)
    flap(centre, 3)
    centre.take(SeparationsWritten(frozenset(separations(centre.state))))
    centre.take(SeparationsSeen({}, unreadable=frozenset({NODE})))

    assert 1 == len(separations(centre.state))


def test_separations_are_believed_at_the_first_look() -> None:
    """A new process goes on with what the last one wrote."""
    centre = Centre(job())
    centre.take(ON)
    flap(centre, 3)
    kept = separations(centre.state)

    again = Centre(job())
    again.now = centre.now
    again.take(ON, SeparationsSeen(kept, restore=True))
    assert kept == separations(again.state)
    assert centre.view() == again.view()


def test_switching_it_off_lets_all_back() -> None:
    """At once."""
    centre = Centre(job())
    centre.take(ON)
    flap(centre, 3)
    changes = centre.take(PolicySeen(Separation(enabled=False)))

    assert changes.separations
    assert HEALTHY == centre.view()


def test_mild_faults_and_idle_chips_are_not_counted() -> None:
    """Nor what is not a chip's."""
    centre = Centre(job(pods=[pod(chips=2)]))
    centre.take(ON)
    for _ in range(4):
        centre.devices(fault(0, "S", "SubHealthFault", at=centre.now), fault(7, "F", at=centre.now))
        centre.devices(after=60)

    assert {} == separations(centre.state)


def test_the_device_plugins_own_separation_is_a_fault() -> None:
    """Released where it was made."""
    centre = Centre(job())
    centre.devices(separated=[3])
    assert [(3, "1", "")] == centre.ranks()
    assert "ManuallySeparateNPU" == centre.view().ranks[0].level
    centre.devices(separated=[])
    assert HEALTHY == centre.view()
