"""What the tests of training get."""

from collections.abc import Callable

import pytest

from tests.train.runs import A_PAIR, DDP, ONE_NODE, STEPS, WORLD, Run, read_run, train


@pytest.fixture
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small files have several of them; the ranks of a slow test are processes with the real ones."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr("taskd.train.torch.statefile.BLOCK_BYTES", 4096)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Runs without faults, each made once in a session: neither nodes nor pauses may change a bit."""
    runs: dict[tuple[object, ...], Run] = {}

    def run(*script_args: str, script: str = DDP, steps: int = STEPS, world: int = WORLD) -> Run:
        key = (script, steps, world, *script_args)
        if key not in runs:
            home = tmp_path_factory.mktemp("undisturbed")
            nodes = ONE_NODE if world == WORLD else A_PAIR
            job = train(home, *script_args, "--pause", "0", script=script, steps=steps, nodes=nodes)
            assert [] == job.timeline()
            found = read_run(home, world)
            assert {steps} == {len(losses) for losses, _ in found.values()}
            runs[key] = found
        return runs[key]

    return run


@pytest.fixture
def undisturbed(reference: Callable[..., Run]) -> Run:
    """The usual script without faults."""
    return reference()
