"""When the authority is exchanged and certificates are renewed, so that nobody is ever locked out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core.certificates import (
    AUTHORITY_S,
    BACKDATE_S,
    DAY_S,
    LEAF_S,
    ROTATE_S,
    SPREAD_S,
    Authority,
    AuthorityUnusable,
    Certificate,
    Step,
    judge,
    leaf_flaw,
    leaf_life,
    plane_names,
    trusted,
)

NOW = 1_000_000_000.0
NAMES = ("u-1",)


def authority(mark: str, made: float = NOW) -> Certificate:
    return Certificate(mark, mark, mark, (), made - BACKDATE_S, made + AUTHORITY_S, authority=True)


def leaf(signer: Certificate, made: float = NOW, names: tuple[str, ...] = NAMES) -> Certificate:
    return Certificate("leaf", "leaf", signer.key, names, *leaf_life(signer, made))


OLD, NEXT = authority("old"), authority("next")
KEPT = Authority(OLD, (OLD,))


def test_the_first_look_founds_an_authority() -> None:
    """Nothing is there: one is made."""
    assert Step.FOUND is judge(None, NOW).step


def test_a_healthy_authority_is_kept() -> None:
    """Nothing is written while nothing has to be."""
    assert Step.KEEP is judge(KEPT, NOW + 365 * DAY_S).step


@pytest.mark.parametrize("flawed", [None, replace(OLD, authority=False), replace(OLD, ends=NOW)])
def test_one_of_ours_that_cannot_sign_is_founded_anew(flawed: Certificate | None) -> None:
    """A damaged Secret is not waited for; whoever damaged it will not mend it."""
    assert Step.FOUND is judge(Authority(flawed, (OLD,)), NOW).step


@pytest.mark.parametrize("flawed", [None, replace(OLD, authority=False), replace(OLD, ends=NOW)])
def test_one_that_somebody_brought_is_never_replaced(flawed: Certificate | None) -> None:
    """That it cannot sign is told instead."""
    with pytest.raises(AuthorityUnusable):
        judge(Authority(flawed, (OLD,), ours=False), NOW)


def test_one_that_somebody_brought_is_not_rotated() -> None:
    """Its owner does that."""
    assert Step.KEEP is judge(Authority(OLD, (OLD,), ours=False), OLD.ends - DAY_S).step


def test_a_clock_that_was_set_back_costs_nobody_the_certificates() -> None:
    """An authority from the future is neither replaced nor used."""
    with pytest.raises(AuthorityUnusable):
        judge(KEPT, OLD.begins - 1)


def test_a_successor_is_shown_before_it_signs() -> None:
    """Made half a year before the end, promoted a week later."""
    late = OLD.ends - ROTATE_S
    successor = authority("next", late)
    shown = Authority(OLD, (OLD, successor), successor)

    assert Step.PREPARE is judge(KEPT, late).step
    assert Step.KEEP is judge(shown, late + SPREAD_S - 1).step
    assert Step.PROMOTE is judge(shown, late + SPREAD_S).step


def test_a_successor_signs_at_once_where_the_old_one_has_ended() -> None:
    """Nobody looked for half a year: those who know the successor need no third one."""
    shown = Authority(OLD, (OLD, NEXT), NEXT)

    assert Step.PROMOTE is judge(replace(shown, signer=replace(OLD, ends=NOW)), NOW).step


def test_what_has_ended_leaves_the_bundle() -> None:
    """And nothing else does."""
    ended = replace(OLD, ends=NOW)
    kept = Authority(NEXT, (ended, NEXT))

    assert Step.TRIM is judge(kept, NOW).step
    assert (NEXT,) == trusted(kept, NOW)


@pytest.mark.parametrize(
    ("found", "now", "flaw"),
    [
        (leaf(OLD), NOW, ""),
        (None, NOW, "there is none"),
        (leaf(OLD, names=("u-2",)), NOW, "it is for u-2, not for u-1"),
        (leaf(OLD, names=("u-1", "u-2")), NOW, "it is for u-1, u-2, not for u-1"),
        (leaf(NEXT), NOW, "the authority that signed it is not trusted any more"),
        (leaf(OLD), NOW + LEAF_S * 2 / 3, "it ends soon"),
        (leaf(OLD), NOW - 2 * BACKDATE_S, "it is not valid yet"),
    ],
)
def test_why_a_certificate_is_made_anew(found: Certificate | None, now: float, flaw: str) -> None:
    """The reason is said; an empty one leaves it as it is."""
    assert flaw == leaf_flaw(found, NAMES, (OLD,), now)


def test_a_certificate_never_outlives_its_signer() -> None:
    """So who is valid by the dates is valid by the bundle."""
    assert OLD.ends == leaf_life(OLD, OLD.ends - 1)[1]


def test_the_plane_is_known_under_all_its_names() -> None:
    """The Service that jobs are told of, its address, and the name that images of the reference know."""
    found = plane_names("taskd-system/taskd-plane", "10.96.0.9", ("plane.example",))

    assert {
        "taskd-plane.taskd-system.svc.cluster.local",
        "taskd-plane.taskd-system.svc",
        "clusterd-grpc-svc.mindx-dl.svc.cluster.local",
        "10.96.0.9",
        "plane.example",
    } <= set(found)
    assert "None" not in plane_names("mindx-dl/clusterd-grpc-svc", "None")


@dataclass
class World:
    """A controller that looks now and then, and pods that read what it wrote a while ago."""

    now: float = NOW
    kept: Authority | None = None
    made: int = 0
    leaf: Certificate | None = None
    shown_since: dict[str, float] = field(default_factory=dict)

    def look(self) -> None:
        for _ in range(4):
            step = judge(self.kept, self.now).step
            if step is Step.KEEP:
                break
            self.write(step)
        assert self.kept is not None
        for each in trusted(self.kept, self.now):
            self.shown_since.setdefault(each.mark, self.now)
        assert self.kept.signer is not None
        if leaf_flaw(self.leaf, NAMES, trusted(self.kept, self.now), self.now):
            self.leaf = leaf(self.kept.signer, self.now)

    def write(self, step: Step) -> None:
        """Do one step, as it is written into the Secret."""
        old = self.kept.bundle if self.kept else ()
        signer, successor = (self.kept.signer, self.kept.successor) if self.kept else (None, None)
        if step in {Step.FOUND, Step.PREPARE}:
            self.made += 1
            fresh = authority(f"a{self.made}", self.now)
            signer, successor = (fresh, successor) if step is Step.FOUND else (signer, fresh)
            old = (*old, fresh)
        elif step is Step.PROMOTE:
            signer, successor = successor, None
        self.kept = Authority(signer, tuple(each for each in old if each.ends > self.now), successor)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.5, 9.0), min_size=1, max_size=50))
def test_through_years_of_looks_nobody_is_locked_out(pauses_days: list[float]) -> None:
    """Whoever holds a valid certificate is trusted, and whoever signs has been known for a week."""
    world = World()
    pauses = itertools.cycle(pauses_days)
    while world.now < NOW + 3 * AUTHORITY_S:
        world.look()
        assert world.kept is not None
        assert world.leaf is not None
        signer = world.kept.signer
        assert signer is not None
        assert world.leaf.signed_by in {each.key for each in trusted(world.kept, world.now)}
        assert world.leaf.ends - world.now >= LEAF_S / 3 - BACKDATE_S
        assert signer.ends - world.now >= LEAF_S
        if signer.mark != "a1":
            assert world.now - world.shown_since[signer.mark] >= SPREAD_S
        world.now += next(pauses) * DAY_S
        # Between two looks the certificate stays good.
        assert world.now < world.leaf.ends
        assert world.leaf.signed_by in {each.key for each in trusted(world.kept, world.now)}
    assert world.made >= 3, "the authority was exchanged on the way"
