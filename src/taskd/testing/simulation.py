"""A whole job on virtual time: one manager, some proxies and agents, and everything that can happen to them.

The machines are the real ones of ``core``: the recovery machine, the agent's machine, the numbering of
messages, the routing. Only their shells are replaced, by mirrors that have no sockets and no clock. A seed
decides everything, so a failure is looked at again with::

    python -m taskd.testing.simulation --seed 4711

What must hold, at every event (see ``sim_checks``):

* a node never runs processes of two generations; two nodes do not either, except where the manager had lost
  sight of one of them;
* no life of an agent carries out an order twice, starts a generation that is not newer, or goes back;
* one generation is one plan; an incident costs at most one restart, and no node more than its budget.

And when the faults are over, within a bound: the job runs or has ended, each incident has an outcome, and
after the end nothing is left and every agent that could be reached was told.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from functools import partial
from random import Random

from taskd.core.exits import Exit, ExitCode
from taskd.core.incidents import RECOVERING
from taskd.core.status import JobPhase
from taskd.testing.sim_agent import SimAgent
from taskd.testing.sim_checks import Checks, Disk, InvariantBroken, Process
from taskd.testing.sim_manager import SimManager
from taskd.testing.sim_network import Action, Scheduler
from taskd.testing.sim_proxy import SimProxy
from taskd.testing.sim_world import JOIN_TIMEOUT_S, Scenario, World, draw_scenario

BOUND_S = 15.0
FAREWELL_S = 20.0
CASCADE = 0.3
STOP_CODE = 130
SHOWN_LINES = 80


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to."""

    seed: int
    events: int
    virtual_s: float
    generations: int
    incidents: int
    reason: str
    trace: tuple[str, ...]


class Simulation:
    """One run."""

    def __init__(self, scenario: Scenario) -> None:
        """Set the stage; ``run`` plays."""
        self.scenario = scenario
        disk = Disk()
        self.world = World(
            scenario=scenario,
            scheduler=Scheduler(Random(scenario.seed)),
            checks=Checks(scenario.options.max_restarts, disk),
            disk=disk,
        )
        self.world.on_phase = self._ambush
        self._ambushes = list(scenario.ambushes)
        self._gone: set[str] = set()
        self._calm_at = 0.0

    def run(self) -> Result:
        """Play to the end; raises InvariantBroken with the seed and the trace."""
        try:
            self._play()
        except InvariantBroken as broken:
            tail = "\n".join(self.world.checks.trace[-SHOWN_LINES:])
            raise InvariantBroken(f"seed {self.scenario.seed}: {broken}\n{self.scenario}\n{tail}") from broken
        disk = self.world.disk
        return Result(
            seed=self.scenario.seed,
            events=self.world.scheduler.events,
            virtual_s=self.world.now,
            generations=self.world.checks.generations,
            incidents=len(disk.incidents),
            reason=disk.ending.reason if disk.ending else "",
            trace=tuple(self.world.checks.trace),
        )

    def _play(self) -> None:
        scheduler, rng = self.world.scheduler, self.world.rng
        scheduler.between(0.0, 1.0, self._start_manager)
        for number in range(self.scenario.nodes):
            node = str(number)
            scheduler.between(0.0, 1.5, partial(self._start_proxy, node))
            scheduler.between(0.0, 1.5, partial(self._start_agent, node))
        centre = rng.uniform(1.0, self.scenario.fault_window_s)
        for _ in range(self.scenario.faults):
            spread = rng.choice([0.3, 2.0, self.scenario.fault_window_s])
            at = min(max(centre + rng.uniform(-spread, spread), 0.5), self.scenario.fault_window_s)
            scheduler.after(at, self._draw_fault)
        window = self.scenario.fault_window_s if self.scenario.faults else 2.0
        self._calm_after(window)
        self._go_on_until(window)
        while not self.world.disk.ended and self._calm_at > self.world.now:
            self._go_on_until(self._calm_at)
        self.world.calm = True
        self.world.note("world", "calm from here on")
        self._settle()
        self._judge_end()

    def _go_on_until(self, moment: float) -> None:
        self.world.scheduler.run(moment, lambda: self.world.disk.ended)

    def _calm_after(self, moment: float) -> None:
        self._calm_at = max(self._calm_at, moment)

    # --- the end -----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Nothing bad happens any more: the job must run soon, and end when it should."""
        world, checks = self.world, self.world.checks
        enough = self.scenario.nodes - len(self._gone) >= self.scenario.options.min_nodes
        # The whole bound, not only until the job runs: what the last fault left behind may show late.
        world.scheduler.run(world.now + BOUND_S, lambda: world.disk.ended)
        checks.now = world.now
        well = world.disk.ending is not None or self._is_running()
        checks.require(
            well or not enough, f"not running {BOUND_S:g} s after the last fault, but {self._phase()}"
        )
        manager = world.manager
        if manager is not None and self._is_running() and self.scenario.endless:
            manager.request_stop("the user pressed Ctrl-C", STOP_CODE)
        limit = FAREWELL_S + (self.scenario.work_s * 1.2 if enough else JOIN_TIMEOUT_S)
        world.scheduler.run(world.now + limit, lambda: world.disk.ended)
        world.checks.now = world.now
        world.checks.require(world.disk.ended, f"the job never ended; it is {self._phase()}")
        world.scheduler.run(world.now + FAREWELL_S, lambda: False)

    def _judge_end(self) -> None:
        world, checks = self.world, self.world.checks
        checks.now = world.now
        reachable = [node for node in world.agents if node not in world.out_of_reach | self._gone]
        for node in reachable:
            checks.require(node in world.finished, f"node {node} was never told that the job is over")
            checks.require(not checks.alive(node), f"node {node} still runs {checks.alive(node)}")
        for incident in world.disk.incidents.values():
            checks.require(incident.outcome != RECOVERING, f"incident {incident.number} has no outcome")
            phases = incident.phases_ms().values()
            checks.require(all(ms >= 0 for ms in phases), f"incident {incident.number} went back in time")
        ending = world.disk.ending
        code = ending.code if ending else None
        if self.scenario.patient and not self._gone:
            expected = STOP_CODE if self.scenario.endless else ExitCode.OK
            checks.require(code == expected, f"ended with {ending}, not {expected}")

    def _is_running(self) -> bool:
        manager = self.world.manager
        return manager is not None and manager.job.phase is JobPhase.RUNNING

    def _phase(self) -> str:
        manager = self.world.manager
        return f"{manager.job.phase} ({manager.job.reason})" if manager else "without a manager"

    # --- births ------------------------------------------------------------------------------------------

    def _start_manager(self) -> None:
        if self.world.manager is None and not self.world.disk.ended:
            self.world.manager = SimManager(self.world)

    def _start_proxy(self, node: str) -> None:
        known = self.world.proxies.get(node)
        if node not in self._gone and (known is None or not known.alive):
            self.world.proxies[node] = SimProxy(self.world, node)

    def _start_agent(self, node: str) -> None:
        known = self.world.agents.get(node)
        if node not in self._gone | self.world.finished and (known is None or not known.alive):
            self.world.agents[node] = SimAgent(self.world, node)

    # --- faults ------------------------------------------------------------------------------------------

    def _draw_fault(self) -> None:
        kinds = {
            self._kill_manager: 3,
            self._kill_proxy: 2,
            self._kill_agent: 2,
            self._fail_process: 4,
            self._cut_link: 3,
            self._lose_node: 1,
        }
        fault = self.world.rng.choices(list(kinds), list(kinds.values()))[0]
        fault()
        self._calm_after(self.world.now)

    def _ambush(self, phase: JobPhase) -> None:
        """Have a fault happen just when the manager has come to a phase: most moments are not that short."""
        if phase in self._ambushes and (not self.world.calm or phase is JobPhase.FINISHING):
            self._ambushes.remove(phase)
            self._come_back(self._draw_fault, 0.0, 0.5)

    def _some_node(self) -> str:
        return str(self.world.rng.randrange(self.scenario.nodes))

    def _come_back(self, action: Action, low_s: float, high_s: float) -> None:
        delay = self.world.rng.uniform(low_s, high_s)
        self.world.scheduler.after(delay, action)
        self._calm_after(self.world.now + delay + 0.01)

    def _kill_manager(self) -> None:
        manager = self.world.manager
        if manager is not None:
            manager.kill()
        self._come_back(self._start_manager, 0.05, 2.0)

    def _kill_proxy(self) -> None:
        node = self._some_node()
        proxy = self.world.proxies.get(node)
        if proxy is not None and proxy.alive:
            proxy.kill()
        self._come_back(partial(self._start_proxy, node), 0.05, 2.0)

    def _kill_agent(self) -> None:
        node = self._some_node()
        agent = self.world.agents.get(node)
        if agent is not None and agent.alive:
            agent.kill()
        self._come_back(partial(self._start_agent, node), 0.05, 2.0)

    def _fail_process(self) -> None:
        agent = self.world.agents.get(self._some_node())
        if agent is None or not agent.alive or not agent.processes:
            return
        victim = self.world.rng.choice(list(agent.processes.values()))
        if not victim.alive:
            return
        agent.fail(victim, self.world.rng.choice([Exit(signal=9), Exit(code=1), Exit(code=3), Exit()]))
        self._calm_after(self.world.now + 1.0)
        self._cascade(victim)

    def _cut_link(self) -> None:
        node = self._some_node()
        self.world.note("world", f"the link of node {node} is cut")
        self.world.cut.add(node)
        proxy = self.world.proxies.get(node)
        if proxy is not None and proxy.upstream is not None:
            proxy.upstream.cut(self.world.remote_notice_s())
        self._come_back(partial(self._heal, node), 0.05, self.world.rng.choice([0.3, 2.0, 9.0]))

    def _heal(self, node: str) -> None:
        self.world.note("world", f"the link of node {node} is whole")
        self.world.cut.discard(node)

    def _lose_node(self) -> None:
        node = self._some_node()
        self.world.note("world", f"node {node} loses its power")
        proxy, agent = self.world.proxies.get(node), self.world.agents.get(node)
        if proxy is not None and proxy.alive:
            proxy.kill()
        if agent is not None and agent.alive:
            agent.kill()
        if self.world.rng.random() < 0.3:  # noqa: PLR2004 - a likelihood
            self.world.note("world", f"node {node} is gone for ever")
            self._gone.add(node)
            return
        self._come_back(partial(self._start_proxy, node), 0.1, 8.0)
        self._come_back(partial(self._start_agent, node), 0.1, 8.0)

    def _cascade(self, origin: Process) -> None:
        """Have some peers of a failed process fail too: later, but they may be noticed earlier."""
        for agent in list(self.world.agents.values()):
            for process in agent.processes.values():
                peer = process.generation == origin.generation and process is not origin
                if peer and self.world.rng.random() < CASCADE:
                    self._come_back(partial(agent.fail, process, Exit(code=1)), 0.01, 0.6)


def simulate(seed: int) -> Result:
    """Draw a scenario from a seed and play it; raises InvariantBroken."""
    return Simulation(draw_scenario(seed)).run()


def main(argv: list[str] | None = None) -> int:
    """Play one seed and show everything, or many and show the figures."""
    parser = argparse.ArgumentParser(description="Play a simulated job.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1, help="play this many seeds, and show only the sums")
    args = parser.parse_args(argv)
    began, events, failed = time.perf_counter(), 0, 0
    for seed in range(args.seed, args.seed + args.count):
        try:
            result = simulate(seed)
        except InvariantBroken as broken:
            failed += 1
            sys.stdout.write(f"{broken}\n" if args.count == 1 else f"{str(broken).splitlines()[0]}\n")
            continue
        events += result.events
        if args.count == 1:
            sys.stdout.write(f"{draw_scenario(seed)}\n" + "\n".join(result.trace) + "\n")
            sys.stdout.write(
                f"seed {seed}: {result.events} events, {result.virtual_s:.1f} s of virtual time, "
            )
            sys.stdout.write(f"{result.incidents} incidents, {result.reason}\n")
    if args.count > 1:
        took = time.perf_counter() - began
        sys.stdout.write(
            f"{args.count} seeds, {failed} failed, {args.count / took:.0f} seeds/s, {events} events\n"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
