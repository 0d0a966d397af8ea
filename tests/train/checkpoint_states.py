"""Small states as checkpoints, written and read by one process that stands for all ranks."""

from pathlib import Path
from typing import Any

from taskd.train.torch.checkpointer import capture_objects
from taskd.train.torch.checkpoints import load
from taskd.train.torch.manifests import Layout, RankState
from taskd.train.torch.rounds import Round

ONE = Layout(("all",))


class Holder:
    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state_dict: Any) -> None:
        self.state = state_dict


def save(root: Path, step: int, value: Any, *, run: str = "run", layout: Layout = ONE) -> Path:
    """A checkpoint by a single process that stands for all ranks."""
    root.mkdir(exist_ok=True)
    with Round(root, layout, step, run=run, generation=1) as round_:
        for shard in layout.keys:
            round_.add_shard(shard, capture_objects({"holder": Holder(value)}))
        for rank in range(layout.world_size):
            round_.add_rank(rank, RankState(b"own of %d" % rank, step).capture())
        return round_.publish()


def read(root: Path, *, layout: Layout = ONE, rank: int = 0) -> tuple[int, Any]:
    holder = Holder()
    found = load(root, {"holder": holder}, layout=layout, rank=rank)
    assert found is not None
    assert b"own of %d" % rank == found[1].own
    assert found[0] == found[1].position
    return found[0], holder.state


def hidden(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith(".")]
