"""Where each rank goes, and what its process finds in its environment."""

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.launch import LaunchSpec, Plan, compute_places, compute_worker_env
from taskd.core.programs import Program, ProgramKind

WORLDS = st.lists(st.integers(1, 16), min_size=1, max_size=20)


def make_plan(worlds: list[int], generation: int = 1) -> Plan:
    places = compute_places([(f"node-{number}", world) for number, world in enumerate(worlds)])
    return Plan(generation, generation - 1, "10.0.0.1", 29500, places)


def make_spec() -> LaunchSpec:
    return LaunchSpec(
        "job", Program(ProgramKind.SCRIPT, "train.py"), run_id="run", role="trainer", max_restarts=4
    )


@given(WORLDS)
def test_the_places_share_out_the_ranks_exactly(worlds: list[int]) -> None:
    """Each rank from 0 to the world size has one place, and each place its own ranks."""
    plan = make_plan(worlds)

    ranks = [rank for place in plan.places for rank in place.ranks]

    assert list(range(plan.world_size)) == ranks
    assert sum(worlds) == plan.world_size
    for place in plan.places:
        assert place == plan.place_of(place.node)
        assert all(place == plan.place_of_rank(rank) for rank in place.ranks)


@given(WORLDS)
def test_what_is_not_in_the_plan_has_no_place(worlds: list[int]) -> None:
    """Neither a node nor a rank."""
    plan = make_plan(worlds)

    assert plan.place_of("elsewhere") is None
    assert plan.place_of_rank(plan.world_size) is None
    assert plan.place_of_rank(-1) is None


@given(WORLDS, st.data())
def test_the_environment_agrees_with_the_plan(worlds: list[int], data: st.DataObject) -> None:
    """The numbers that torch.distributed reads fit together for every rank."""
    plan = make_plan(worlds)
    place = data.draw(st.sampled_from(plan.places))
    local_rank = data.draw(st.integers(0, place.local_world - 1))

    env = compute_worker_env(make_spec(), plan, place, local_rank)

    assert place.first_rank + local_rank == int(env["RANK"])
    assert place == plan.place_of_rank(int(env["RANK"]))
    assert (sum(worlds), worlds[place.node_rank]) == (int(env["WORLD_SIZE"]), int(env["LOCAL_WORLD_SIZE"]))
    assert (local_rank, place.node_rank) == (int(env["LOCAL_RANK"]), int(env["GROUP_RANK"]))


def test_the_environment_is_that_of_torchrun() -> None:
    """Every variable, with its value, for one rank of a job that was restarted twice."""
    plan = make_plan([2, 2], generation=3)

    env = compute_worker_env(make_spec(), plan, plan.places[1], 1)

    assert {
        "LOCAL_RANK": "1",
        "RANK": "3",
        "GROUP_RANK": "1",
        "ROLE_RANK": "3",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "4",
        "TORCHELASTIC_RUN_ID": "run",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    } == env
