"""How the ranks of a job come together after a fault: to which step, and who gets its state from whom.

Two decisions, both pure. The manager chooses the step, from what every rank said of itself
(``decide_regroup``). When the group stands, the ranks show each other what they really hold, with a digest of
it, and each comes to the same plan of transfers (``plan_transfers``): a copy that is damaged is noticed
before anybody uses it, and the next source takes its place.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from taskd.core.messages import Regroup, Save, Standing

MOST_NAMED = 8  # runs of ranks in one sentence


def decide_regroup(standings: Mapping[int, Standing]) -> Regroup | str:
    """Decide to which step all go and who needs a state; or say why there is no such step.

    The target is the highest committed step, by anybody: a vote ends for one rank before it does for all, so
    one that died may have been ahead. Who is one below it and holds the whole gradient applies that. If a
    rank's part of the state is nowhere to be had at that step (it has no replica, and its last snapshot was
    not finished), all go one step back, to their own snapshots. A step that nobody has applied is always
    computed again: the rank that died would not have its result otherwise.
    """
    keepers = {rank: standing for rank, standing in standings.items() if standing.has_state}
    stores = [standing.store for standing in standings.values() if standing.store]
    if not keepers:
        return "no rank is left that has a state"
    if not stores:
        return "no rank offers a place to meet"
    here = max(standing.step for standing in keepers.values())
    ahead = any(standing.told > here for standing in standings.values())
    missing = ""
    for top, target in [*([(here + 1, here + 1)] if ahead else []), (here, here), (here, here - 1)]:
        receivers = _who_needs(standings, target)
        orphan = next((rank for rank in receivers if not _is_to_be_had(standings, rank, target)), None)
        if orphan is None:
            generation = next(iter(keepers.values())).generation
            shards = tuple(known_layout(standings.values()).values())
            over = any(standing.through for standing in keepers.values())
            return Regroup(generation, stores[0], target, top, tuple(receivers), shards, over=over)
        missing = missing or f"nobody has the state of rank {orphan} at step {target}"
    return missing


def decide_save(standings: Mapping[int, Standing], world: int) -> Save | str:
    """Decide which step is written to disk, and by whom: each part of the state by its lowest holder.

    A part that nobody holds at that step is written by somebody who can read a snapshot of it.
    """
    layout = known_layout(standings.values())
    parts = {layout.get(rank, ""): rank for rank in range(world)}
    top = max((standing.step for standing in standings.values() if standing.has_state), default=-1)
    missing = "no rank is left that has a state"
    for target in (top, top - 1):
        holders: dict[str, int] = {}
        for rank in sorted(standings, reverse=True):
            if _gets_to(standings[rank], target):
                holders[layout.get(rank, "")] = rank
        kept = _snapshots_by_part(standings, layout, target)
        orphan = next((rank for part, rank in parts.items() if part not in {**holders, **kept}), None)
        if orphan is None:
            absent = tuple(rank for rank in range(world) if rank not in standings)
            generation = next(iter(standings.values())).generation
            copies = tuple(sorted(kept[part] for part in parts if part not in holders))
            return Save(generation, target, tuple(sorted(holders.values())), absent, copies)
        missing = f"nobody is left who has the state of rank {orphan} at step {target}"
    return missing


def _snapshots_by_part(
    standings: Mapping[int, Standing], layout: Mapping[int, str], target: int
) -> dict[str, tuple[int, int]]:
    """Return for each part who can read a snapshot of it, and whose it is; best is one's own."""
    found = [
        (layout.get(owner, ""), (rank, owner))
        for rank, standing in standings.items()
        for owner, step in (*standing.snapshots, *standing.beside)
        if step == target
    ]
    return dict(sorted(found, key=lambda item: (item[1][0] == item[1][1], -item[1][0], -item[1][1])))


def _who_needs(standings: Mapping[int, Standing], target: int) -> list[int]:
    return sorted(rank for rank, standing in standings.items() if not _gets_to(standing, target))


def _gets_to(standing: Standing, target: int) -> bool:
    """Tell whether a rank has the state of a step, or makes it from the gradient that it holds."""
    ready = standing.step == target or (standing.step == target - 1 and standing.complete)
    return standing.has_state and ready


def _is_to_be_had(standings: Mapping[int, Standing], rank: int, target: int) -> bool:
    layout = known_layout(standings.values())
    part = layout.get(rank, "")
    for other, standing in standings.items():
        if layout.get(other, "") == part and _gets_to(standing, target):
            return True
        if any(step == target and layout.get(owner, "") == part for owner, step in standing.snapshots):
            return True
    return False


def known_layout(standings: Iterable[Standing]) -> dict[int, str]:
    """Return which part of the state each rank has; where nobody knows better, all have the same."""
    shards = max((standing.shards for standing in standings), key=len, default=())
    return dict(enumerate(shards))


class Kind(StrEnum):
    """What is moved."""

    REPLICA = "replica"
    SNAPSHOT = "snapshot"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a rank holds of the target step, shown to all others.

    ``part`` and ``digest`` are numbers made from the shard's name and from the tensors. ``snapshots`` and
    ``own`` are the ranks of whose state, and of whose own small state, it has a whole copy.
    """

    rank: int
    part: int
    holds: bool
    digest: int = 0
    needs_own: bool = False
    snapshots: tuple[int, ...] = ()
    own: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """One rank gets something from another one, or from its own node's memory."""

    receiver: int
    source: int
    kind: Kind
    owner: int


@dataclass(frozen=True, slots=True)
class Transfers:
    """What is moved, who is left without a source, and what people should know of it."""

    moves: tuple[Transfer, ...]
    orphans: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def plan_transfers(offers: Mapping[int, Offer]) -> Transfers:
    """Find a source for everybody who needs one; every rank computes the same from the same offers."""
    moves: list[Transfer] = []
    orphans: list[int] = []
    notes: list[str] = []
    trusted, odd = _trusted(offers, notes)
    receivers = [rank for rank in sorted(offers) if not offers[rank].holds or rank in odd]
    for rank in receivers:
        part = offers[rank].part
        holder = next((other for other in sorted(trusted) if offers[other].part == part), None)
        if holder is not None:
            moves.append(Transfer(rank, holder, Kind.REPLICA, rank))
            continue
        copy = _find_copy(offers, rank)
        if copy is None:
            orphans.append(rank)
        else:
            moves.append(Transfer(rank, copy[0], Kind.SNAPSHOT, copy[1]))
    for rank in sorted(offers):
        if not offers[rank].needs_own or rank in offers[rank].own:
            continue
        keeper = next((other for other in sorted(offers) if rank in offers[other].own), None)
        if keeper is None:
            notes.append(f"what rank {rank} alone had (its random state) was kept nowhere")
        else:
            moves.append(Transfer(rank, keeper, Kind.OWN, rank))
    return Transfers(tuple(moves), tuple(orphans), tuple(notes))


def _trusted(offers: Mapping[int, Offer], notes: list[str]) -> tuple[set[int], set[int]]:
    """Return the holders whose tensors agree with most of their replicas', and those that do not.

    It takes three copies to outvote one. Of two that differ, or as many against as many, the lowest rank's
    is taken: all ranks go on with one state, be it the right one or not.
    """
    trusted: set[int] = set()
    odd: set[int] = set()
    for part in sorted({offer.part for offer in offers.values()}):
        holders = [rank for rank in sorted(offers) if offers[rank].holds and offers[rank].part == part]
        votes = Counter(offers[rank].digest for rank in holders)
        if len(votes) <= 1:
            trusted.update(holders)
            continue
        most = max(votes.values())
        # In a tie there is no telling who is right: one of them is taken, and people are told of it.
        first = next(rank for rank in holders if votes[offers[rank].digest] == most)
        wrong = [rank for rank in holders if offers[rank].digest != offers[first].digest]
        if list(votes.values()).count(most) == 1:
            named = ", ".join(map(str, wrong))
            notes.append(f"the state of rank {named} differed from its replicas' and was replaced")
        else:
            notes.append(
                f"the copies of {_ranks(holders)} differ, and which one is right cannot be told: "
                f"that of rank {first} was taken"
            )
        odd.update(wrong)
        trusted.update(rank for rank in holders if rank not in wrong)
    return trusted, odd


def _find_copy(offers: Mapping[int, Offer], rank: int) -> tuple[int, int] | None:
    """Return (who has it, whose it is): the own node's memory first, then a buddy's, then a replica's."""
    if rank in offers[rank].snapshots:
        return rank, rank
    for other in sorted(offers):
        if rank in offers[other].snapshots:
            return other, rank
    for other in sorted(offers):
        for owner in offers[other].snapshots:
            if owner in offers and offers[owner].part == offers[rank].part:
                return other, owner
    return None


def describe_sources(moves: Iterable[Transfer]) -> tuple[str, ...]:
    """Say from where ranks got their state: a sentence for each kind of source, for however many ranks."""
    by_kind: dict[str, list[Transfer]] = {}
    for move in moves:
        if move.kind is not Kind.OWN:
            by_kind.setdefault(_source(move), []).append(move)
    notes: list[str] = []
    for source, group in by_kind.items():
        receivers = sorted({move.receiver for move in group})
        gets, its, s = ("gets", "its", "") if len(receivers) == 1 else ("get", "their", "s")
        where = source.format(its=its, s=s, givers=_ranks({move.source for move in group}))
        notes.append(f"{_ranks(receivers)} {gets} {its} state from {where}")
    return tuple(notes)


def _source(move: Transfer) -> str:
    if move.kind is Kind.REPLICA:
        return "{givers}"
    if move.owner != move.receiver:
        return "the snapshot{s} of {its} replica{s}, kept by {givers}"
    return "{its} snapshot{s}" if move.source == move.receiver else "{its} buddy's copy, kept by {givers}"


def _ranks(ranks: Iterable[int]) -> str:
    """Name ranks, neighbours as from-to: there may be thousands."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    noun = "rank" if [len(run) for run in runs] == [1] else "ranks"
    named = ["-".join(map(str, run)) for run in runs[:MOST_NAMED]]
    more = [f"{len(runs) - MOST_NAMED} more"] if len(runs) > MOST_NAMED else []
    return f"{noun} {', '.join(named + more)}"
