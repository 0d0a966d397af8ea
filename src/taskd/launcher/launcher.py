"""Run one job on this machine: start the roles, keep them, tell the person, clean up.

The launcher makes no decision about the job; it only keeps its processes there. When it ends, for whatever
reason, nothing of the job is left: the roles end with it, the agents' nurseries end the workers.
"""

import asyncio
import errno
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from taskd.agent.config import AgentConfig
from taskd.agent.surroundings import warm_up
from taskd.core.exits import ExitCode
from taskd.core.incidents import describe_news
from taskd.core.launch import LaunchSpec
from taskd.core.status import IncidentStatus
from taskd.core.succession import Follow, Term, pace_of
from taskd.kit import jobs
from taskd.kit.dictconfig import join_address
from taskd.kit.machine import remove_tree
from taskd.kit.papers import JobPapers, PapersError, find_papers, read_papers
from taskd.launcher.forerunner import Forerunner
from taskd.launcher.heir import LOOKOUT_PORT, Heir
from taskd.launcher.lookout import held_address
from taskd.launcher.neighbourhood import Neighbourhood
from taskd.launcher.notices import drop_missing_preloads, say, slow_imports_notice
from taskd.launcher.places import NodeDirs, node_dirs, remove_scratch
from taskd.launcher.roles import RoleProcess
from taskd.launcher.topology import LaunchError, LocalNode, Topology, decide_topology
from taskd.manager.config import ManagerConfig
from taskd.proxy.config import ProxyConfig

MANAGER_START_S = 30.0
GOODBYE_S = 5.0
HAND_OVER_S = 2.0
STOP_MARGIN_S = 15.0


@dataclass(slots=True)
class _Outcome:
    """What the agents said at the end."""

    code: int | None = None
    reason: str = ""


class Rejoin(Exception):
    """Begin again: what runs here has nothing to do, and the job is elsewhere."""


class Launcher:
    """The launcher of one job."""

    def __init__(
        self,
        spec: LaunchSpec,
        topology: Topology,
        *,
        external_manager: bool = False,
        forerunner: Forerunner | None = None,
    ) -> None:
        """Describe the job; ``run`` runs it. ``forerunner`` is the nursery of its only node."""
        self._forerunner = forerunner
        self._spec = spec
        self._topology = topology
        self._hosts = topology.hosts_manager
        self._external = external_manager
        self._token = os.environ.get("TASKD_TOKEN", "")
        self._papers = _find_papers()
        alone = spec.max_nodes == spec.local_nodes and spec.pod is None
        if not self._token and alone and not external_manager:
            self._token = secrets.token_hex(16)
        self._scratch = secrets.token_hex(3)
        self._run_id = secrets.token_hex(6)
        self._address = topology.manager_addr
        self._keepers: list[asyncio.Future[None]] = []
        self._watch: asyncio.Future[None] | None = None
        self._reach_s = spec.pod.reach_s if spec.pod is not None else 0.0
        self._pace = pace_of(self._reach_s)
        self._heir: Heir | None = None
        if topology.standby_port is not None and not external_manager:
            standby = held_address(topology.standby_port)
            self._heir = Heir(
                spec.job,
                self._token,
                topology.nodes[0].key,
                standby,
                self,
                _neighbours(spec, topology, self._token, self._papers),
                self._papers,
                self._pace,
            )
            self._heir.manager = topology.manager_addr if spec.pod is not None else ""
        self._dirs = {node.key: node_dirs(spec.job, node.key, self._scratch) for node in topology.nodes}
        self._manager: RoleProcess | None = None
        self._agents: dict[str, RoleProcess] = {}
        self._proxies: dict[str, RoleProcess] = {}
        self._outcomes: dict[str, _Outcome] = {node.key: _Outcome() for node in topology.nodes}
        self._listening = asyncio.Event()
        self._fatal = ""
        self._fatal_code = int(ExitCode.USAGE)
        self._signal_code = 0
        self._over = asyncio.Event()
        self._stops = 0
        self._again = False
        self._handed_over = False
        self._phase = ""

    async def run(self) -> int:
        """Run the job; returns its exit code."""
        try:
            await self._find_place()
            self._record()
            loop = asyncio.get_running_loop()
            for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                loop.add_signal_handler(sig, self._on_signal, sig)
            if self._forerunner is not None:
                self._forerunner.watch(loop)
            if self._hosts:
                self._start_manager()
            for node in self._topology.nodes:
                self._dirs[node.key].make()
                self._proxies[node.key] = self._proxy_role(node)
                self._agents[node.key] = self._agent_role(node)
                self._keepers.append(asyncio.ensure_future(self._proxies[node.key].run()))
                self._keepers.append(asyncio.ensure_future(self._agents[node.key].run()))
            await self._wait_until_over(self._keepers)
            return await self._goodbye()
        finally:
            for role in self._roles():
                role.finished.set()
                role.kill()
            if self._watch is not None:
                self._watch.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)
            if self._heir is not None:
                await self._heir.close()
            for held in (self._topology.held_port, self._topology.standby_port):
                if held is not None:
                    held.close()
            for dirs in self._dirs.values():
                remove_tree(dirs.shm)
                remove_tree(dirs.tmp)

    async def _find_place(self) -> None:
        """Find out whether this launcher is to host the manager; another machine may have taken that over."""
        heir = self._heir
        if heir is None or self._topology.standby_port is None:
            return
        await heir.open(self._topology.standby_port.getsockname()[0])
        later = await heir.look_back()
        if later is not None:
            if self._hosts:
                say(f"node {later.term.node} manages this job by now; this launcher joins it there")
            self._hosts = False
            heir.term, heir.manager = later.term, later.manager
            self._address = later.manager
        elif self._hosts or heir.inherits:
            self._hosts = True
            heir.begin(self._run_id)
            self._address = heir.manager
        self._watch = asyncio.ensure_future(heir.keep())
        self._keepers.append(self._watch)

    async def _wait_until_over(self, keepers: list[asyncio.Future[None]]) -> None:
        over = asyncio.ensure_future(self._over.wait())
        try:
            while not over.done():
                everything: list[asyncio.Future[Any]] = [over, *keepers]
                pending = {task for task in everything if not task.done()}
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            over.cancel()

    # --- succession --------------------------------------------------------------------------------------

    def follow(self, where: Follow) -> None:
        """Send the proxy to another manager."""
        self._address = where.manager
        for proxy in self._proxies.values():
            proxy.tell(follow=where)

    def take_over(self, run: str) -> None:
        """Host the manager from now on."""
        self._hosts, self._run_id = True, run
        self._start_manager()
        try:
            jobs.adopt_job(self._make_record())
        except (OSError, jobs.JobLookupError) as error:
            say(f"the job cannot be made known here: {error}")

    def stand_down(self) -> None:
        """End the manager that this launcher hosts; it has decided nothing."""
        manager, self._manager, self._hosts = self._manager, None, False
        if manager is not None:
            manager.finished.set()
            manager.kill()

    def superseded(self, why: str) -> None:
        """End everything here: the job goes on elsewhere."""
        self._fatal_code = int(ExitCode.NODES_MISSING)
        self._end_with(why)

    def rejoin(self, why: str) -> None:
        """End the roles here, which have no job yet, and begin again."""
        self._again = True
        self._end_with(why)

    def tell(self, what: str) -> None:
        """Tell the person at the console."""
        if not self._over.is_set():
            say(what)

    # --- roles -------------------------------------------------------------------------------------------

    def _roles(self) -> list[RoleProcess]:
        manager = [self._manager] if self._manager is not None else []
        return [*manager, *self._proxies.values(), *self._agents.values()]

    def _role_logs(self) -> Path:
        """Return where the roles' own logs go: TASKD_LOG_PATH, or the job's directory."""
        wanted = os.environ.get("TASKD_LOG_PATH", "")
        return Path(wanted) if wanted else jobs.logs_dir(self._spec.job) / "roles"

    def _start_manager(self) -> None:
        self._manager = RoleProcess("manager", "taskd.manager", self._manager_config, self._on_manager_note)
        self._keepers.append(asyncio.ensure_future(self._manager.run()))

    def _manager_config(self) -> ManagerConfig:
        host, port = self._topology.manager_host, self._topology.manager_port
        if self._topology.standby_port is not None:
            host, port = self._topology.standby_port.getsockname()[:2]
        return ManagerConfig(
            job=self._spec.job,
            options=self._spec.options(),
            host=host,
            port=port,
            succession=self._heir.succession() if self._heir is not None else None,
            token=self._token,
            papers=self._papers,
            log_file=str(self._role_logs() / "manager.log"),
            metrics_port=_port_from_env("TASKD_METRICS_PORT"),
            faults=self._spec.faults,
            port_reserved=True,
            reach_s=self._reach_s,
            pace=self._pace,
        )

    def _proxy_role(self, node: LocalNode) -> RoleProcess:
        dirs = self._dirs[node.key]
        heir = self._heir

        def config() -> ProxyConfig:
            dirs.make()
            return ProxyConfig(
                job=self._spec.job,
                node=node.key,
                manager=self._address,
                socket=dirs.socket,
                token=self._token,
                papers=self._papers,
                log_file=str(self._role_logs() / f"taskd-proxy-{node.key}-{int(time.time())}.log"),
                term=heir.term if heir is not None else Term(),
                standby=heir.me if heir is not None else None,
                roster_file=heir.roster_file if heir is not None else "",
                pace=self._pace,
            )

        def heard(name: str, note: Mapping[str, object]) -> None:
            if heir is not None:
                heir.on_proxy_note(note)
            self._on_note(name, note)

        return RoleProcess(f"proxy of node {node.key}", "taskd.proxy", config, heard)

    def _agent_role(self, node: LocalNode) -> RoleProcess:
        dirs = self._dirs[node.key]

        def config() -> AgentConfig:
            dirs.make()
            return self._agent_config(node, dirs)

        def heard(_name: str, note: Mapping[str, object]) -> None:
            self._on_agent_note(node.key, note)

        return RoleProcess(f"agent of node {node.key}", "taskd.agent", config, heard, self._forerunner)

    def _agent_config(self, node: LocalNode, dirs: NodeDirs) -> AgentConfig:
        logs = jobs.logs_dir(self._spec.job)
        return AgentConfig(
            spec=self._spec,
            node=node.key,
            wants_rank=node.wants_rank,
            addr=node.addr,
            socket=dirs.socket,
            shm_dir=dirs.shm,
            tmp_dir=dirs.tmp,
            logs_dir=str(logs),
            fired_dir=str(jobs.fired_dir(self._spec.job)),
            ledger_file=str(jobs.job_dir(self._spec.job) / "ledger" / f"{node.key}.jsonl"),
            log_file=str(self._role_logs() / f"agent-{node.key}.log"),
            own_tmp=len(self._topology.nodes) > 1,
            warm=warm_up(self._spec, spare=node.spare),
            spare=node.spare,
            dump_dir=self._spec.dump_dir or str(jobs.base_dir() / "dumps" / self._spec.job),
        )

    # --- what the roles say ------------------------------------------------------------------------------

    def _on_manager_note(self, name: str, note: Mapping[str, object]) -> None:
        if self._heir is not None:
            self._heir.on_manager_note(note)
        self._on_note(name, note)

    def _on_note(self, name: str, note: Mapping[str, object]) -> None:
        if "listening" in note:
            self._listening.set()
        if "fatal" in note:
            code = note.get("code")
            self._fatal_code = code if isinstance(code, int) else self._fatal_code
            self._end_with(str(note["fatal"]))
        if "incident" in note:
            self._tell_incident(note["incident"])
        if "phase" in note:
            self._tell_phase(note)
        if "notice" in note:
            say(str(note["notice"]))
        if "silent" in note:
            say(f"the {name} did not react any more and was ended")
        if "gave_up" in note:
            self._fatal_code = int(ExitCode.INTERNAL)
            log = self._role_logs()
            self._end_with(f"the {name} ends as soon as it is started (code {note['gave_up']}); see {log}")
        elif "died" in note and not self._over.is_set():
            say(f"the {name} ended (code {note['died']}) and is started again")

    def _on_agent_note(self, node: str, note: Mapping[str, object]) -> None:
        code = note.get("finished")
        if isinstance(code, int):
            self._outcomes[node] = _Outcome(code, str(note.get("reason", "")))
            self._agents[node].finished.set()
            if all(outcome.code is not None for outcome in self._outcomes.values()):
                self._over.set()
            return
        if "died" in note and self._manager is not None:
            # Quicker than the proxy, which may have died with it, and surer than a lease.
            self._manager.tell(agent_died=node, pid=note.get("pid", 0))
        self._on_note(f"agent of node {node}", note)

    def _tell_incident(self, incident: object) -> None:
        try:
            news = describe_news(msgspec.convert(incident, IncidentStatus))
        except msgspec.ValidationError:
            return
        if news:
            say(news)

    def _tell_phase(self, note: Mapping[str, object]) -> None:
        """Say that a restart is done; a recovery from memory has its own line."""
        before, self._phase = self._phase, str(note.get("phase"))
        generation = note.get("generation")
        if (
            (before, self._phase) == ("starting", "running")
            and isinstance(generation, int)
            and generation > 1
        ):
            say(f"all ranks run again (generation {generation})")

    def _end_with(self, why: str) -> None:
        self._fatal = self._fatal or why
        self._over.set()

    # --- the end -----------------------------------------------------------------------------------------

    def _on_signal(self, sig: signal.Signals) -> None:
        self._stops += 1
        code = ExitCode.SIGNAL_BASE + sig
        why = f"{sig.name} was received"
        if self._stops > 1:
            self._fatal = f"{why} again; ending at once"
            self._signal_code = code
            self._over.set()
            return
        say(f"{why}; stopping in order (once more ends at once)")
        self._signal_code = code
        undecided = self._heir is not None and self._heir.undecided
        if self._leaves_others(sig):
            self._hand_over()
        if self._manager is not None and not undecided:
            self._manager.tell(stop=why, code=code)
        else:
            for agent in self._agents.values():
                agent.tell(stop=why, code=code)
        limit_s = self._spec.stop_grace_s + STOP_MARGIN_S
        asyncio.get_running_loop().call_later(limit_s, self._stop_at_last, f"{why} {limit_s:g} s ago")

    def _leaves_others(self, sig: signal.Signals) -> bool:
        """Tell whether only this pod goes: a cluster that takes the whole job away tells every pod."""
        return sig is signal.SIGTERM and self._spec.pod is not None and self._spec.max_nodes > 1

    def _hand_over(self) -> None:
        """Let another pod host the manager; the others hear at once that it is gone from here."""
        if self._heir is not None:
            self._heir.leave()
        if self._manager is not None:
            self.stand_down()
            self._handed_over = True

    def _stop_at_last(self, why: str) -> None:
        """End although the roles did not: whoever sent the signal will not wait for ever either."""
        if self._phase == "saving":
            asyncio.get_running_loop().call_later(STOP_MARGIN_S, self._stop_at_last, why)
            return
        self._fatal = f"{why}, and not everything has stopped; ending at once"
        self._over.set()

    async def _goodbye(self) -> int:
        """Let agents show the last output and the manager write the last status; then say how it ended."""
        for role in self._roles():
            role.finished.set()
        if self._again:
            raise Rejoin(self._fatal)
        if self._fatal:
            say(self._fatal)
            return self._signal_code or self._fatal_code
        leaving = [*self._agents.values(), *([self._manager] if self._manager is not None else [])]
        deadline = time.monotonic() + GOODBYE_S
        while time.monotonic() < deadline and any(role.alive for role in leaving):
            await asyncio.sleep(0.02)
        if self._handed_over:
            await asyncio.sleep(
                HAND_OVER_S
            )  # the others ask now, and hear that the manager is gone from here
        code = max((outcome.code or 0 for outcome in self._outcomes.values()), default=0)
        if self._manager is None and self._signal_code:
            code = self._signal_code
        reason = next((outcome.reason for outcome in self._outcomes.values() if outcome.reason), "")
        if code:
            say(reason)
        return code

    def _record(self) -> None:
        """Make the job known on this machine; several launchers of one job may stand here side by side."""
        if not self._hosts and not (self._external and self._spec.node_rank <= 0):
            # Another launcher, here or on another machine with the same home, has made the job's directory.
            return
        for abandoned in jobs.sweep():
            jobs.close_abandoned(abandoned, "its launcher was killed", time.time())
            remove_scratch(abandoned.job, abandoned.scratch)
        jobs.open_job(self._make_record())

    def _make_record(self) -> jobs.JobRecord:
        heir = self._heir
        return jobs.JobRecord(
            job=self._spec.job,
            launcher_pid=os.getpid(),
            launcher_start_ticks=jobs.read_start_ticks(os.getpid()) or 0,
            manager_addr=heir.manager if heir is not None else self._topology.manager_addr,
            token=self._token,
            papers=self._papers,
            created_stamp=time.time(),
            argv=tuple(sys.argv),
            cwd=str(Path.cwd()),
            scratch=self._scratch,
            run=self._run_id,
        )


def _port_from_env(name: str) -> int:
    raw = os.environ.get(name, "")
    if not raw:
        return 0
    if not raw.isdigit() or not 0 < int(raw) < 65536:  # noqa: PLR2004 - the range of ports
        raise LaunchError(f"{name}={raw} is not a port; give a number from 1 to 65535 or unset it")
    return int(raw)


def check_surroundings() -> None:
    """Refuse what would fail later and less clearly."""
    token = os.environ.get("TASKD_TOKEN", "")
    if not (token.isascii() and (token.isprintable() or not token)):
        raise LaunchError("TASKD_TOKEN has characters that cannot travel in a header; use printable ASCII")
    _find_papers()
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise LaunchError("the working directory was removed; change to one that exists") from error


def _find_papers() -> JobPapers:
    """Find the job's certificates, and see that they can be read: without them it must not run."""
    try:
        if papers := find_papers(os.environ):
            read_papers(papers.directory)
    except PapersError as error:
        raise LaunchError(str(error)) from error
    return papers


def prepare_environment() -> None:
    """Put right in this process's environment what every child would stumble over, and say so once."""
    preload, missing = drop_missing_preloads(os.environ)
    if missing:
        say(f"LD_PRELOAD names {', '.join(missing)}, which does not exist; left out")
        os.environ["LD_PRELOAD"] = preload
    notice = slow_imports_notice()
    if notice:
        say(notice)


def run_job(spec: LaunchSpec, forerunner: Forerunner | None = None) -> int:
    """Run a job on this machine to its end; returns the exit code."""
    try:
        check_surroundings()
        prepare_environment()
        topology = decide_topology(spec)
        if spec.rdzv_backend == "c10d" and spec.max_nodes > spec.local_nodes:
            spec = replace(spec, master_addr="")  # rank 0 is wherever it comes up
        _port_from_env("TASKD_METRICS_PORT")
        while True:
            try:
                placed = replace(spec, manager_port=topology.manager_port)
                return asyncio.run(_run(placed, topology, forerunner))
            except Rejoin as reason:
                say(str(reason))
                topology = decide_topology(spec)
    except (LaunchError, jobs.JobLookupError) as error:
        say(str(error))
        return ExitCode.USAGE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        say(f"{error.strerror}: {error.filename or jobs.base_dir()}; make room, or set TASKD_HOME")
        return ExitCode.USAGE


def _neighbours(spec: LaunchSpec, topology: Topology, token: str, papers: JobPapers) -> Neighbourhood | None:
    """Return whom a pod can ask; in other places nobody has a name that stays."""
    pod = spec.pod
    if pod is None:
        return None
    leader = join_address(spec.master_addr, topology.manager_port)
    # Whoever stands by has no neighbours by rank, and those who are left may have stood by themselves.
    wide = topology.hosts_manager or pod.spare
    return Neighbourhood(pod, spec.job, token, LOOKOUT_PORT, leader, all_of_them=wide, papers=papers)


async def _run(spec: LaunchSpec, topology: Topology, forerunner: Forerunner | None) -> int:
    return await Launcher(spec, topology, forerunner=forerunner).run()
