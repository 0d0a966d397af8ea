"""The processes of torch's own elastic agent, as a host.

torch keeps starting, stopping and looking after its processes; TaskD decides when. The callbacks take torch's
worker group, and what its monitor answers is torch's ``RunResult``, which in the end goes back to the
launcher unchanged, so that torchrun's own report of a failed rank still works.
"""

from collections.abc import Mapping

from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerState
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from taskd.agent.callbacks import NEEDED_BY_TORCH, Callback, Look, Operator, check_callbacks
from taskd.core.exits import Exit, ExitCode

FAILED_STATES = (WorkerState.FAILED, WorkerState.UNHEALTHY)


class ElasticHost:
    """The processes of a SimpleElasticAgent."""

    def __init__(self, agent: object, callbacks: Mapping[Operator, Callback]) -> None:
        """Take the agent and the callbacks that its launcher registered."""
        if not isinstance(agent, SimpleElasticAgent):
            msg = f"cls is a {type(agent).__name__}, not a SimpleElasticAgent"
            raise TypeError(msg)
        check_callbacks(callbacks, NEEDED_BY_TORCH)
        self._agent = agent
        self._group = agent.get_worker_group()
        self._kill = callbacks[Operator.KILL_WORKER]
        self._start = callbacks[Operator.START_ALL_WORKER]
        self._monitor = callbacks[Operator.MONITOR]
        self._started = False
        self._last: RunResult | None = None

    @property
    def local_world(self) -> int:
        """Return how many ranks this node has."""
        return self._group.spec.local_world_size

    @property
    def max_restarts(self) -> int:
        """Return how many faults the user allows."""
        return self._group.spec.max_restarts

    @property
    def nodes(self) -> int:
        """Return how many nodes the rendezvous waits for, 1 if it does not say."""
        handler = self._group.spec.rdzv_handler
        settings = getattr(handler, "settings", None)  # the dynamic rendezvous
        nodes = getattr(settings, "max_nodes", None) or getattr(handler, "world_size", 1)  # the static one
        return nodes if isinstance(nodes, int) and nodes > 0 else 1

    def start(self, restart_count: int) -> None:
        """Start all local ranks, after torch's rendezvous."""
        self._last = None
        # torch tells its workers the number of restarts as the difference of the two.
        self._agent._remaining_restarts = max(0, self.max_restarts - restart_count)  # noqa: SLF001
        self._start(self._group)
        self._started = True

    def stop(self) -> None:
        """End all local ranks now."""
        self._started = False
        self._kill(self._group)
        self._group.state = WorkerState.STOPPED

    def look(self) -> Mapping[int, Look] | None:
        """Ask torch. Once it has seen an end it has closed its processes, so it is not asked again."""
        if not self._started:
            return {}
        if self._last is None:
            result = self._monitor(self._group)
            if not isinstance(result, RunResult):
                return None
            self._group.state = result.state
            if result.state is WorkerState.HEALTHY:
                return {worker.local_rank: Look(worker.id) for worker in self._group.workers}
            self._last = result
        return self._read(self._last)

    def leave(self) -> None:
        """End what still runs; after a success torch cleans up by itself."""
        if self._last is None or self._last.state is not WorkerState.SUCCEEDED:
            self.stop()

    def make_result(self, code: int) -> RunResult:
        """Return what torch's launcher expects at the end of the job."""
        if code == ExitCode.OK:
            if self._last is not None and self._last.state is WorkerState.SUCCEEDED:
                return self._last
            nothing = {worker.global_rank: None for worker in self._group.workers}
            return RunResult(WorkerState.SUCCEEDED, return_values=nothing)
        if self._last is not None and self._last.failures:
            return RunResult(WorkerState.FAILED, failures=self._last.failures)
        # The fault was another node's, or the job was stopped: this node has no failure to show.
        raise SystemExit(ExitCode.FAILED)

    def _read(self, result: RunResult) -> dict[int, Look]:
        looks: dict[int, Look] = {}
        for worker in self._group.workers:
            if result.state is WorkerState.SUCCEEDED:
                looks[worker.local_rank] = Look(worker.id, exit=Exit(code=0))
            elif result.state in FAILED_STATES:
                looks[worker.local_rank] = _failed(worker.id, result.failures.get(worker.global_rank))
            else:
                error = f"torch reports the state {result.state.name}"
                looks[worker.local_rank] = Look(worker.id, exit=Exit(), error=error)
        return looks


def _failed(pid: int, failure: ProcessFailure | None) -> Look:
    """Describe a rank of a failed group; one without a failure of its own is ended with the group."""
    if failure is None:
        return Look(pid)
    code = failure.exitcode
    how = Exit(signal=-code) if code < 0 else Exit(code=code or 1)
    stamp = failure.timestamp if failure.error_file_data else 0
    return Look(failure.pid, exit=how, error=failure.message, failed_stamp=float(stamp))
