"""The workload under ``taskd run``."""

from gate import wait_turn
from torch.nn.parallel import DistributedDataParallel
from workload import STEPS, Ledger, build, compute

from taskd import train


def main() -> None:
    """Train."""
    ledger = Ledger()
    job = train.join()
    ledger.mark("joined")
    model, optimizer = build()
    ledger.mark("built")
    ddp = job.wrap(lambda: DistributedDataParallel(model))
    ledger.mark("wrapped")
    job.register(model=model, optimizer=optimizer)

    def train_step(step: int) -> float:
        return compute(ledger, ddp, optimizer, step, job.rank)

    wait_turn(0)
    for step, _ in job.steps(train_step, until=STEPS):
        ledger.step(step, job.rank, job.world_size)
        wait_turn(step + 1)


if __name__ == "__main__":
    main()
