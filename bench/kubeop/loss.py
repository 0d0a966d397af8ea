"""One pod of a large running job is deleted: how soon is it there again, and what was written for it."""

import threading
import time
from dataclasses import dataclass, field

from recovery.figures import Section

from kubeop import jobs
from kubeop.contestants import OURS, kinds
from kubeop.ground import Ground, moment, until
from taskd.testing.kube import Watch

MEDIAN_MS, WORST_MS = 70.0, 200.0


@dataclass(slots=True)
class Eyes:
    """When each pod was seen to go and to come, by this machine's clock."""

    watch: Watch
    seen: dict[tuple[str, str], float] = field(default_factory=dict)
    ready: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        """Note what comes, until the watch is closed."""
        for event in self.watch:
            if event.type == "SYNCED":
                self.ready.set()
            elif event.type in {"ADDED", "DELETED"}:
                self.seen[event.type, event.object["metadata"]["name"]] = time.monotonic()


def measure_loss(ground: Ground, *, pods: int, losses: int) -> Section:
    """Delete pods one after another, each after the job runs whole again."""
    section = Section("loss")
    from_answer, from_event, server, pod_writes, status_writes, events = ([] for _ in range(6))
    with ground.turn("loss") as turn, OURS.running(ground, turn.namespace, gang=False):
        namespace, api = turn.namespace, ground.kube.api
        ground.create("submitter", namespace, [[("ascendjobs", jobs.ascend_job(namespace, "j", pods))]])
        ground.wait_created(turn, "pods", pods, 120)
        assert ground.actor("run", str(ground.users["volcano"].kubeconfig), namespace).wait(120) == 0
        _wait_running(ground, namespace, f"{pods}/{pods}")
        eyes = Eyes(ground.kube.api.watch(f"/api/v1/namespaces/{namespace}/pods"))
        threading.Thread(target=eyes.look, daemon=True).start()
        assert eyes.ready.wait(20)
        for number in range(losses):
            # Never the leader: the same pod for every contestant of the table in the spec.
            name = f"j-worker-{(number * 37) % (pods - 1)}"
            eyes.seen.clear()
            mark = ground.kube.audit.mark()
            turn.place, turn.requests = mark, []
            api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", grace_s=0)
            answered = time.monotonic()
            until(lambda key=("ADDED", name): key in eyes.seen, 20, every_s=0.002)
            from_answer.append(1000 * (eyes.seen["ADDED", name] - answered))
            from_event.append(1000 * (eyes.seen["ADDED", name] - eyes.seen["DELETED", name]))
            time.sleep(1.0)  # longer than a status may wait
            ground.settle(turn)
            mine = [each for each in turn.writes(ground.users["taskd"].name) if each.resource != "leases"]
            removal = next(each for each in turn.requests if each.verb == "delete" and each.name == name)
            made = [each for each in mine if each.resource == "pods"]
            server.append(1000 * (moment(made[0].answered_at) - moment(removal.answered_at)))
            if len(mine) > 3:
                section.note(
                    f"loss {number + 1} took more: "
                    + "; ".join(
                        f"{each.received_at[17:23]} {each.verb} {each.resource}/{each.subresource}"
                        for each in mine
                    )
                )
            pod_writes.append(float(len(made)))
            status_writes.append(float(sum(each.subresource == "status" for each in mine)))
            events.append(float(sum(each.resource == "events" for each in mine)))
            api.patch(
                f"/api/v1/namespaces/{namespace}/pods/{name}/status",
                {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}},
            )
            _wait_running(ground, namespace, f"{pods}/{pods}")
        section.note(f"the writes of the last loss: {', '.join(kinds(mine))}")
        eyes.watch.close()
    name = f"one pod of {pods} deleted"
    section.add(f"{name}: there again after the delete call's answer", from_answer, "ms", MEDIAN_MS)
    section.add("    the worst of them", [max(from_answer)], "ms", WORST_MS)
    section.add(f"{name}: there again after the watch said DELETED", from_event, "ms", MEDIAN_MS)
    section.add("    the worst of them", [max(from_event)], "ms", WORST_MS)
    section.add(f"{name}: by the API server's own clock", server, "ms")
    section.add(f"{name}: pod writes, at most", [max(pod_writes)], "", 1.0)
    section.add(f"{name}: status writes, at most", [max(status_writes)], "", 1.0)
    section.add(f"{name}: Events written, at most", [max(events)], "")
    return section


def _wait_running(ground: Ground, namespace: str, ready: str) -> None:
    """Wait until the job says that all of its pods run, and so has nothing more to write."""

    def whole() -> bool:
        status = ground.kube.api.get(f"{jobs.JOBS.format(namespace)}/j").get("status") or {}
        return bool(status.get("readyReplicas") == ready and status["conditions"][-1]["type"] == "Running")

    until(whole, 60, every_s=0.1)
    time.sleep(0.2)
