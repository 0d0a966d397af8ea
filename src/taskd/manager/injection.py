"""Faults on purpose: from the command line at any moment, or from a schedule at a step.

A rank's own faults at a step are done by the worker itself, which alone knows when the step is there. Faults
of a node or a role at a step are announced by a worker (``FaultDue``) and carried out from here.
"""

import asyncio
import secrets
from typing import Protocol

from taskd.core.jobstate import Job
from taskd.core.launch import FaultKind, NodePlace, ScheduledFault
from taskd.core.messages import FaultDue, Inject, OrderDone, WorkerOrder
from taskd.manager.calls import CallError

ROLES = ("manager", "proxy", "agent")


class Hands(Protocol):
    """What the injector needs of a manager."""

    job: Job

    async def order_agent(self, node: str, order: Inject) -> OrderDone:
        """Give an order to an agent and wait."""
        ...

    async def order_workers(self, order: WorkerOrder, nodes: list[str]) -> dict[int, str]:
        """Give an order to workers and wait."""
        ...

    def die(self, kind: str) -> None:
        """End or stop the manager itself."""
        ...


class Injector:
    """Carries out faults, each once."""

    def __init__(self, hands: Hands, schedule: tuple[ScheduledFault, ...]) -> None:
        """Keep the schedule; nothing happens until a worker or a person asks."""
        self._hands = hands
        self._waiting = {fault.fault_id: fault for fault in schedule}
        self._running: set[asyncio.Future[dict[str, str]]] = set()

    def due(self, message: FaultDue) -> None:
        """A worker came to the step of a fault that it cannot do itself."""
        fault = self._waiting.pop(message.fault_id, None)
        if fault is not None:
            task = asyncio.ensure_future(self._do(fault))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def inject(self, params: dict[str, object]) -> dict[str, str]:
        """Do what the command line asks for; raises CallError with a sentence if that is impossible."""
        try:
            fault = ScheduledFault(
                fault_id=f"inject/{secrets.token_hex(4)}",
                kind=FaultKind(str(params.get("kind", ""))),
                rank=_number(params, "rank"),
                node=_number(params, "node"),
                role=str(params.get("role") or ""),
                step=_number(params, "step"),
                code=_number(params, "code", 1),
            )
        except ValueError as error:
            raise CallError(str(error)) from error
        if fault.step >= 0 and (fault.role or fault.node >= 0):
            return await self._arm_trigger(fault)
        return await self._do(fault)

    async def _do(self, fault: ScheduledFault) -> dict[str, str]:
        if fault.role:
            return await self._hit_role(fault)
        if fault.node >= 0:
            place = self._place(fault.node)
            return await self._order(place.node, Inject(fault.fault_id, fault.kind, whole_node=True))
        return await self._hit_rank(fault)

    async def _hit_role(self, fault: ScheduledFault) -> dict[str, str]:
        if fault.role not in ROLES:
            raise CallError(f"there is no role {fault.role!r}; choose one of {', '.join(ROLES)}")
        if fault.kind not in (FaultKind.KILL, FaultKind.HANG):
            raise CallError(f"a role can be killed or hung, not made to {fault.kind}")
        if fault.role == "manager":
            self._hands.die(fault.kind)
            return {"order": fault.fault_id, "detail": f"the manager will {fault.kind} now"}
        place = self._place(max(fault.node, 0))
        return await self._order(place.node, Inject(fault.fault_id, fault.kind, role=fault.role))

    async def _hit_rank(self, fault: ScheduledFault) -> dict[str, str]:
        plan = self._hands.job.plan
        place = plan.place_of_rank(fault.rank) if plan else None
        if place is None:
            raise CallError(f"there is no rank {fault.rank} in this job")
        if fault.kind in (FaultKind.KILL, FaultKind.HANG) and fault.step < 0:
            return await self._order(place.node, Inject(fault.fault_id, fault.kind, rank=fault.rank))
        return await self._arm(place.node, fault.rank, fault, here=True)

    async def _arm_trigger(self, fault: ScheduledFault) -> dict[str, str]:
        self._waiting[fault.fault_id] = fault
        place = self._place(max(fault.node, 0))
        return await self._arm(place.node, place.first_rank, fault, here=False)

    async def _arm(self, node: str, rank: int, fault: ScheduledFault, *, here: bool) -> dict[str, str]:
        args = {
            "id": fault.fault_id,
            "kind": fault.kind.value,
            "step": str(fault.step),
            "code": str(fault.code),
            "here": "1" if here else "0",
        }
        order = WorkerOrder(fault.fault_id, "fault", (rank,), args)
        results = await self._hands.order_workers(order, [node])
        answer = results.get(rank, "no answer")
        if answer != "ok":
            raise CallError(
                f"rank {rank} cannot do this ({answer}): a {fault.kind}, and any fault at a step, needs a "
                "script that calls taskd.train.join() and has begun its steps"
            )
        return {"order": fault.fault_id, "detail": f"rank {rank} is armed"}

    async def _order(self, node: str, order: Inject) -> dict[str, str]:
        done = await self._hands.order_agent(node, order)
        if not done.ok:
            raise CallError(done.detail)
        return {"order": order.order, "detail": done.detail}

    def _place(self, node_rank: int) -> NodePlace:
        plan = self._hands.job.plan
        places = plan.places if plan else ()
        for place in places:
            if place.node_rank == node_rank:
                return place
        raise CallError(f"there is no node {node_rank} in this job of {len(places)} nodes")


def _number(params: dict[str, object], key: str, default: int = -1) -> int:
    value = params.get(key)
    if value is None:
        return default
    if not isinstance(value, int):
        raise CallError(f"{key} must be a whole number, not {value!r}")
    return value
