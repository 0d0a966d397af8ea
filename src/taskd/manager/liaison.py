"""The manager's side of the control plane: keeps the connection, carries deeds of ``core.liaison`` out.

The training never waits for this: a plane that cannot be reached is tried again in the background, and as
long as it is away the job's own machine decides alone.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Protocol, assert_never

from taskd.core import liaison as talks
from taskd.core.consulting import FaultType, offers
from taskd.core.exits import ExitCode
from taskd.core.incidents import SWITCH, SWITCHED, Incident, is_over
from taskd.core.jobstate import Advised, Consult, Event, Job, PlaneChanged, Relief, SwitchRequested, Warned
from taskd.core.launch import DUMP, FaultKind
from taskd.core.messages import WorkerOrder
from taskd.core.podplace import host_of, standby_node
from taskd.core.saving import is_saved
from taskd.core.status import JobPhase
from taskd.core.switching import why_not
from taskd.core.troubles import DECISION_S
from taskd.kit.logs import Log
from taskd.kit.papers import JobPapers
from taskd.links.plane import PlaneAddress, PlaneError, PlaneLink, PlaneRefused, connect_plane

PORT = 8899
CONNECT_S = 3.0
# How long a decision may take. Ours answers in milliseconds, and once it has said stop it may wait 15 s for a
# device that comes back. A ClusterD waits for 11 s as a rule, 14 s for a recovery in place, and 26 s where a
# device stays broken: whoever goes on by itself before that does so just when the decision comes.
OURS_S, THINKING_S, STOCK_S = 2.0, 20.0, DECISION_S
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
# A ClusterD forgets a fault that it hears of before a subscription, or while it still deals with one.
SETTLE_S = 0.3
STANDBY_S, LOOK_S = 60.0, 0.1
TRIES = 3


def find_plane(environ: Mapping[str, str], papers: JobPapers) -> PlaneAddress | None:
    """Read from the environment where the job's control plane is; None where there is none."""
    if environ.get("TASKD_PROCESS_ENABLE") == "off":
        return None
    job_id = environ.get("MINDX_TASK_ID", "")
    host = "127.0.0.1" if environ.get("LOCAL_PROXY_ENABLE") == "on" else environ.get("MINDX_SERVER_IP", "")
    address = environ.get("TASKD_PLANE") or (f"{host}:{PORT}" if host else "")
    if not address or not job_id:
        return None
    # Certificates for the plane alone go before those for everything.
    return PlaneAddress(address, job_id, environ.get("TASKD_PLANE_CERTS", "") or papers.directory)


class Hands(Protocol):
    """What the liaison needs of a manager."""

    job: Job

    def apply(self, event: Event) -> None:
        """Feed an event into the job's machine."""
        ...

    def request_stop(self, why: str, code: int, *, save: bool = False) -> None:
        """End the job in order."""
        ...

    async def order_workers(self, order: WorkerOrder, nodes: list[str]) -> dict[int, str]:
        """Give an order to workers and wait."""
        ...


@dataclass(slots=True)
class _Seen:
    """What was last seen of the job, to notice what changed."""

    incident: int = 0
    over: bool = True


class Liaison:
    """Speaks with the plane for one job."""

    def __init__(self, place: PlaneAddress, hands: Hands, log: Log) -> None:
        """Know whom to call; ``run`` does it."""
        self._place = place
        self._hands = hands
        self._log = log
        self._talk = talks.Talk()
        self._link: PlaneLink | None = None
        self._reports: deque[tuple[talks.Deed, str]] = deque()
        self._more = asyncio.Event()
        self._listened_to = asyncio.Event()
        """The plane keeps in mind what it is told of a fault; always, if it is ours."""
        self._tasks: set[asyncio.Future[None]] = set()
        self._untold: deque[Incident] = deque(maxlen=16)
        self._seen = _Seen()
        self._moving = False

    # --- the connection ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep in touch until cancelled."""
        failures, told = 0, ""
        while True:
            try:
                async with connect_plane(self._place, CONNECT_S) as link:
                    await link.begin()
                    failures, told = 0, ""
                    self._log.info("plane_joined", address=self._place.address, ours=link.ours)
                    await self._stay(link)
            except PlaneError as error:
                failures += 1
                if isinstance(error, PlaneRefused):
                    self._hands.apply(PlaneChanged(time.monotonic(), time.time(), 0.0, str(error)))
                if str(error) != told:
                    self._log.warning("plane_unreachable", why=str(error))
                    told = str(error)
            self._leave()
            await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])

    async def _stay(self, link: PlaneLink) -> None:
        self._link = link
        # Before the plane says anything: one that was started again shall not ask for what is done already.
        self._tell_later()
        await self._send_all(link)
        sender = asyncio.ensure_future(self._send())
        try:
            while True:
                limit_s = OURS_S if link.ours else STOCK_S
                self._hands.apply(PlaneChanged(time.monotonic(), time.time(), limit_s))
                self._more.set()
                await self._listen(link)
                # A ClusterD ends the stream after each episode and forgets what comes before the next one.
                await link.begin()
        finally:
            sender.cancel()

    async def _listen(self, link: PlaneLink) -> None:
        """Subscribe, and do what the signals say until their stream ends."""
        settled = asyncio.get_running_loop().call_later(0.0 if link.ours else SETTLE_S, self._listened_to.set)
        try:
            async for signal in link.signals():
                if signal.kind != talks.SignalKind.KEEP_ALIVE:
                    self._log.info("plane_signal", signal=signal)
                self._do(*talks.hear(self._talk, signal))
        finally:
            settled.cancel()
            if not link.ours:
                self._listened_to.clear()

    def _leave(self) -> None:
        self._listened_to.clear()
        if self._link is not None:
            self._link = None
            self._hands.apply(PlaneChanged(time.monotonic(), time.time(), 0.0))
        self._reports.clear()
        self._talk = talks.lose_plane(self._talk)

    # --- the job's side ----------------------------------------------------------------------------------

    def consult(self, question: Consult) -> None:
        """Put a question of the machine."""
        self._do(*talks.ask(self._talk, question.ranks, question.cut))

    def recorded(self, incident: Incident) -> None:
        """An incident changed: a fault is over, or a move."""
        over = is_over(incident)
        if (self._seen.incident, self._seen.over) == (incident.number, over):
            return
        self._seen = _Seen(incident.number, over)
        if not over:
            return
        if incident.kind == SWITCH:
            self._do(*talks.switched(self._talk, done=incident.outcome == SWITCHED, why=incident.outcome))
            return
        before = self._talk
        recovered = incident.outcome == "recovered" or (before.strategy == DUMP and is_saved(incident))
        self._do(*talks.settle(self._talk, recovered=recovered, why=f"{incident.reason}: {incident.outcome}"))
        if before.stage is not talks.Stage.DECIDED:
            self._untold.append(incident)
            self._tell_later()

    def _tell_later(self) -> None:
        """Tell a plane that was away of what the job did by itself."""
        if self._link is None or not self._link.ours:
            return
        while self._untold:
            incident = self._untold.popleft()
            code = talks.OK if incident.outcome == "recovered" else talks.FAILED
            said = f"without the control plane: {incident.reason}: {incident.outcome}"
            self._reports.append((talks.ReportOutcome(code, said, incident.strategy, alone=True), ""))
        self._more.set()

    # --- deeds -------------------------------------------------------------------------------------------

    def _do(self, talk: talks.Talk, deeds: tuple[talks.Deed, ...]) -> None:
        uuid = talk.uuid or self._talk.uuid
        self._talk = talk
        for deed in deeds:
            match deed:
                case (
                    talks.ReportFault() | talks.ReportStopped() | talks.ReportOffers() | talks.ReportOutcome()
                ):
                    self._reports.append((deed, uuid))
                    self._more.set()
                case talks.Warn():
                    self._warn(deed)
                case talks.Advise():
                    asked = self._hands.job.consulting is not None
                    self._hands.apply(self._advice(deed))
                    self._check_followed(asked=asked)
                case talks.SaveAndLeave():
                    self._save(deed.order)
                case talks.MoveRanks():
                    if not self._moving and self._hands.job.switch is None:
                        self._begin(self._move(deed))
                case talks.Ignore():
                    self._log.info("plane_refused", why=deed.why)
                case _:
                    assert_never(deed)
        self._be_patient()

    def _be_patient(self) -> None:
        """Give our own plane its time while it is at work; its death ends the waiting at once."""
        if self._link is None or not self._link.ours or self._hands.job.plane_limit_s <= 0:
            return
        thinks = self._talk.stage is talks.Stage.ASKED and self._talk.uuid
        limit_s = THINKING_S if thinks else OURS_S
        if limit_s != self._hands.job.plane_limit_s:
            self._hands.apply(PlaneChanged(time.monotonic(), time.time(), limit_s))

    def _advice(self, deed: talks.Advise) -> Advised:
        stock = self._link is None or not self._link.ours
        now, stamp = time.monotonic(), time.time()
        relief = Relief(
            {rank: standby_node(host_of(pod)) for rank, pod in deed.standbys},
            frozenset(standby_node(host_of(pod)) for pod in deed.shunned),
        )
        return Advised(now, stamp, deed.strategy, deed.ranks, deed.nodes, end_agents=stock, relief=relief)

    def _warn(self, warning: talks.Warn) -> None:
        """Let the ranks whose memory is in doubt say so themselves; the machine hears of the others."""
        doubted = tuple(rank for rank, kind in warning.ranks if kind == FaultType.MEMORY)
        others = tuple(each for each in warning.ranks if each[1] != FaultType.MEMORY)
        if others:
            self._hands.apply(Warned(time.monotonic(), time.time(), others, warning.what))
        elif doubted and self._hands.job.consulting is None:
            self._begin(self._doubt(doubted, warning.what))

    def _save(self, order: talks.Signal) -> None:
        """Have the state written. A ClusterD wants the job ended then, ours has its pods replaced."""
        if self._link is None or not self._link.ours:
            why = "the control plane wants the job saved and ended"
            self._hands.request_stop(why, ExitCode.FAILED, save=True)
            return
        if self._hands.job.consulting is None:
            ranks = tuple((rank, FaultType.NORMAL.value) for rank, _ in order.ranks)
            what = "the control plane wants the job saved"
            self._hands.apply(Warned(time.monotonic(), time.time(), ranks, what))
        self._do(*talks.save_now(self._talk, order))

    async def _doubt(self, ranks: tuple[int, ...], what: str) -> None:
        """Have ranks say that their memory is in doubt; those that cannot are on a broken device."""
        plan = self._hands.job.plan
        unable = []
        for rank in ranks:
            place = plan.place_of_rank(rank) if plan else None
            if place is None:
                unable.append(rank)
                continue
            name = f"doubt/{secrets.token_hex(4)}"
            args = {"id": name, "kind": FaultKind.DOUBT.value, "step": "-1", "here": "1"}
            answers = await self._hands.order_workers(WorkerOrder(name, "fault", (rank,), args), [place.node])
            answer = answers.get(rank, "none")
            self._log.info("memory_in_doubt", rank=rank, answer=answer)
            if answer != "ok":
                unable.append(rank)
        if unable:
            broken = tuple((rank, FaultType.NORMAL.value) for rank in unable)
            self._hands.apply(Warned(time.monotonic(), time.time(), broken, what))

    async def _move(self, deed: talks.MoveRanks) -> None:
        """Begin the move as soon as the standby has announced itself."""
        self._moving = True
        try:
            why = await self._move_when_ready(deed)
        finally:
            self._moving = False
        if why:
            self._do(*talks.switched(self._talk, done=False, why=why))

    async def _move_when_ready(self, deed: talks.MoveRanks) -> str:
        """Begin the move; returns why it could not be begun in time."""
        plan = self._hands.job.plan
        places = {plan.place_of_rank(rank) for rank in deed.ranks} if plan else set()
        place = next(iter(places)) if len(places) == 1 else None
        why = "its ranks are not all of one node"
        for _ in range(int(STANDBY_S / LOOK_S) if place is not None else 0):
            request = SwitchRequested(
                time.monotonic(),
                time.time(),
                node_rank=place.node_rank if place else -1,
                spare=standby_node(host_of(deed.standby)) if deed.standby else "",
            )
            why = why_not(self._hands.job, request)
            if not why:
                self._hands.apply(request)
                return ""
            await asyncio.sleep(LOOK_S)
            if self._talk.stage is not talks.Stage.SWITCHING:
                return ""
        return why

    def _check_followed(self, *, asked: bool) -> None:
        """Tell at once where a decision led elsewhere, or came too late: nothing is left to wait for."""
        phase = self._hands.job.phase
        if self._talk.strategy not in ("retry", "recover"):
            return
        if phase in (JobPhase.STOPPING, JobPhase.SAVING):
            self._do(*talks.settle(self._talk, recovered=False, why=self._hands.job.reason))
        elif not asked and phase is JobPhase.RUNNING:
            self._do(*talks.settle(self._talk, recovered=True, why="the job has answered it by itself"))

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self) -> None:
        """Send reports, one after the other; what is refused is told and not repeated."""
        while True:
            await self._more.wait()
            self._more.clear()
            if self._link is not None:
                await self._send_all(self._link)

    async def _send_all(self, link: PlaneLink) -> None:
        while self._reports and self._link is link:
            if isinstance(self._reports[0][0], talks.ReportFault):
                await self._listened_to.wait()
            await self._send_one(link, *self._reports.popleft())

    async def _send_one(self, link: PlaneLink, report: talks.Deed, uuid: str) -> None:
        for pause_s in PAUSES_S[:TRIES]:
            try:
                status = await self._report(link, report, uuid)
            except PlaneError as error:
                self._log.warning("plane_report_failed", report=type(report).__name__, why=str(error))
                await asyncio.sleep(pause_s)
                continue
            self._log.info("plane_told", report=report, status=status)
            return

    async def _report(self, link: PlaneLink, report: talks.Deed, uuid: str) -> object:
        match report:
            case talks.ReportFault():
                return await link.report_fault(report.ranks, report.cut)
            case talks.ReportStopped():
                return await link.report_stopped(report.code, report.info, report.ranks, uuid)
            case talks.ReportOffers():
                found = report.strategies or offers(self._hands.job)
                return await link.report_offers(report.ranks, found, uuid)
            case talks.ReportOutcome():
                placed = talks.placed(self._hands.job.plan) if report.alone else ()
                return await link.report_outcome(
                    report.code,
                    report.info,
                    report.strategy,
                    report.uuid or uuid,
                    alone=report.alone,
                    placed=placed,
                )
            case _:
                raise AssertionError(f"{report} is no report")
