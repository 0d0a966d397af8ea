"""The proving ground itself: what the cluster tests stand on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from taskd.testing.kube import ApiError, Cluster, ControlPlane, Nodes, ProgramFailed, VolcanoStandIn, existing
from taskd.testing.kube.nodes import EXIT, HOLD, REASON, STUCK
from taskd.testing.kube.processes import Program, clear_left_over, remove_directory, working_directory
from taskd.testing.kube.volcano import GROUP

NPU = "huawei.com/Ascend910"


def pod(
    name: str,
    *,
    node: str | None = None,
    notes: dict[str, str] | None = None,
    policy: str = "Never",
    group: str | None = None,
    devices: int = 0,
) -> dict[str, object]:
    container: dict[str, object] = {"name": "main", "image": "none"}
    if devices:
        container["resources"] = {"limits": {NPU: devices}}
    spec: dict[str, object] = {"restartPolicy": policy, "containers": [container]}
    if node is not None:
        spec["nodeName"] = node
    annotations = dict(notes or {})
    if group is not None:
        spec["schedulerName"] = "volcano"
        annotations["scheduling.k8s.io/group-name"] = group
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}


def pod_group(name: str, *, members: int, devices: int) -> dict[str, object]:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": members, "minResources": {NPU: str(devices)}},
    }


class Scene:
    """A namespace with pods and groups, for short sentences below."""

    def __init__(self, kube: Cluster, namespace: str) -> None:
        self.kube = kube
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.groups = f"{GROUP}/namespaces/{namespace}/podgroups"

    def create(self, what: dict[str, object]) -> None:
        self.kube.api.create(self.groups if what.get("kind") == "PodGroup" else self.pods, what)

    def phase_of_group(self, name: str) -> str:
        return str(self.kube.api.get(f"{self.groups}/{name}").get("status", {}).get("phase", ""))

    def wait_group(self, name: str, phase: str) -> dict[str, object]:
        self.kube.wait(lambda: self.phase_of_group(name) == phase, timeout_s=20)
        status: dict[str, object] = self.kube.api.get(f"{self.groups}/{name}")["status"]
        return status

    def message(self, name: str) -> str:
        conditions = self.kube.api.get(f"{self.groups}/{name}")["status"]["conditions"]
        return str(next(found["message"] for found in conditions if found["type"] == "Unschedulable"))


@pytest.fixture
def scene(kube: Cluster, namespace: str) -> Scene:
    return Scene(kube, namespace)


# ------------------------------------------------------------------------------------------ control plane


def test_a_user_has_exactly_the_rights_that_were_given(kube: Cluster, namespace: str) -> None:
    """A user with a rule for pods lists pods and is refused everything else."""
    user = kube.add_user("lister", rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])

    assert [] == user.api.items(f"/api/v1/namespaces/{namespace}/pods")
    with pytest.raises(ApiError, match='User "system:serviceaccount:taskd-users:lister" cannot') as refused:
        user.api.create(f"/api/v1/namespaces/{namespace}/pods", pod("no"))
    assert 403 == refused.value.code


def test_every_write_is_in_the_audit_log(kube: Cluster, namespace: str) -> None:
    """The log says who wrote what, with which answer, and counts refusals too."""
    mark = kube.audit.mark()
    agent = kube.client(user_agent="somebody/1.0")
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    agent.create(path, {"metadata": {"name": "one"}})
    with pytest.raises(ApiError):
        agent.create(path, {"metadata": {"name": "one"}})
    agent.get(f"{path}/one")

    writes = kube.audit.writes(since=mark, user_agent="somebody/")

    assert [("create", "configmaps", 201), ("create", "configmaps", 409)] == [
        (write.verb, write.resource, write.code) for write in writes
    ]


def test_objects_survive_a_killed_api_server(own_kube: ControlPlane) -> None:
    """An API server that is killed loses nothing, and clients find it at the same address."""
    path = "/api/v1/namespaces/default/configmaps"
    own_kube.api.create(path, {"metadata": {"name": "kept"}})
    before = own_kube.apiserver.pid

    own_kube.restart_apiserver()

    assert before != own_kube.apiserver.pid
    assert own_kube.api.find(f"{path}/kept") is not None


def test_a_paused_api_server_answers_nobody_and_goes_on(own_kube: ControlPlane) -> None:
    """Paused, it keeps clients waiting; then it answers them."""
    impatient = own_kube.client(timeout_s=0.5)
    own_kube.apiserver.pause()
    with pytest.raises(TimeoutError):
        impatient.get("/api/v1/namespaces/default")

    own_kube.apiserver.resume()

    assert own_kube.api.get("/api/v1/namespaces/default")


def test_nothing_is_left_after_stop(programs: dict[str, Path]) -> None:
    """A control plane that is stopped leaves no process and no file."""
    plane = ControlPlane(scheduler=False).start()
    running = [psutil.Process(program.pid) for program in plane.programs if program.pid is not None]
    home = plane.directory

    plane.stop()

    assert 3 == len(running)
    assert [] == [process for process in running if process.is_running()]
    assert not home.exists()


CRASHING = """
import json, sys, time
from taskd.testing.kube import ControlPlane, Kubelets
plane = ControlPlane().start()
kubelets = Kubelets(plane).start()
plane.apiserver.pause()
pids = [program.pid for program in [*plane.programs, kubelets.program]]
print(json.dumps({"pids": pids, "home": str(plane.directory)}), flush=True)
time.sleep(600)
"""


def test_a_killed_test_process_leaves_nothing_behind(programs: dict[str, Path], tmp_path: Path) -> None:
    """Its programs end with it, also one that is paused, and the next start removes its files."""
    # A place of its own: elsewhere any start on this machine would clear it before we can look.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", CRASHING]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert started.stdout is not None
    with started, started.stdout as out:
        said = json.loads(out.readline())
        running = [psutil.Process(pid) for pid in said["pids"]]
        started.kill()

    gone, alive = psutil.wait_procs(running, timeout=10)
    assert (5, []) == (len(gone), alive)
    assert [Path(said["home"])] == [*tmp_path.iterdir()]
    clear_left_over(tmp_path)
    assert [] == [*tmp_path.iterdir()]


def test_a_cluster_elsewhere_is_used_only_if_it_is_named_on_purpose(
    kube: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KUBECONFIG counts if its server is on this machine; TASKD_KUBECONFIG always."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(kube.kubeconfig.read_text().replace("127.0.0.1", "192.0.2.1"))
    monkeypatch.delenv("TASKD_KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))
    here = existing(kube.kubectl_path, tmp_path)
    assert here is not None
    assert here.api.find("/api/v1/namespaces/default") is not None

    monkeypatch.setenv("KUBECONFIG", str(elsewhere))
    assert existing(kube.kubectl_path, tmp_path) is None

    monkeypatch.setenv("TASKD_KUBECONFIG", str(elsewhere))
    named = existing(kube.kubectl_path, tmp_path)
    assert named is not None
    assert "192.0.2.1" in named.url


def test_a_program_that_does_not_start_says_why(tmp_path: Path) -> None:
    """The error has the exit status and the end of the log."""
    program = Program(["/bin/sh", "-c", "echo no such luck; exit 3"], log=tmp_path / "log")
    program.start()
    Cluster.wait(lambda: not program.running)

    with pytest.raises(ProgramFailed, match=r"sh ended with 3; the end of its log:\nno such luck"):
        program.check()


def test_directories_of_living_processes_are_left_alone(tmp_path: Path) -> None:
    """Clearing takes only what belongs to nobody: neither a living owner's nor one that is being made."""
    mine = working_directory(tmp_path)
    half_made = tmp_path / "taskd-kube-half"
    half_made.mkdir()

    clear_left_over(tmp_path)
    assert {mine, half_made} == {*tmp_path.iterdir()}

    remove_directory(mine)
    assert [half_made] == [*tmp_path.iterdir()]


# ------------------------------------------------------------------------------------------ nodes and pods


def test_a_pod_that_is_bound_to_a_node_runs(scene: Scene, nodes: Nodes, namespace: str) -> None:
    """It is Running, with an address of its own, as soon as it has a node."""
    (node,) = nodes.add(1)
    scene.create(pod("one", node=node))

    status = nodes.wait_phase(namespace, "one", "Running")["status"]

    assert status["podIP"].startswith("10.")
    assert status["podIP"] != status["hostIP"]


@pytest.mark.usefixtures("alone")
def test_a_pod_that_names_no_scheduler_is_placed(scene: Scene, nodes: Nodes, namespace: str) -> None:
    """kube-scheduler places it where its devices are."""
    nodes.add(1, capacity={"nvidia.com/gpu": 8})
    (node,) = nodes.add(1)
    scene.create(pod("one", devices=8))

    assert node == nodes.wait_phase(namespace, "one", "Running")["spec"]["nodeName"]


def test_annotations_say_what_a_pod_does(scene: Scene, nodes: Nodes, namespace: str) -> None:
    """A template can make its pods fail, succeed or wait by themselves."""
    (node,) = nodes.add(1)
    scene.create(pod("waits", node=node, notes={HOLD: "true"}))
    scene.create(pod("fails", node=node, notes={EXIT: "3", REASON: "Broken"}))
    scene.create(pod("ends", node=node, notes={EXIT: "0"}))

    status = nodes.wait_phase(namespace, "fails", "Failed")["status"]["containerStatuses"][0]
    nodes.wait_phase(namespace, "ends", "Succeeded")
    nodes.wait_phase(namespace, "waits", "Pending")

    ended = status["state"]["terminated"]
    assert (3, "Broken") == (ended["exitCode"], ended["reason"])


@pytest.mark.parametrize(
    ("policy", "code", "phase", "restarts"),
    [("Never", 137, "Failed", 0), ("OnFailure", 137, "Running", 1), ("OnFailure", 0, "Succeeded", 0)],
)
def test_a_pod_ends_as_its_policy_says(
    scene: Scene, nodes: Nodes, namespace: str, policy: str, code: int, phase: str, restarts: int
) -> None:
    """A container that ends is started again in place, or its pod has ended."""
    (node,) = nodes.add(1)
    scene.create(pod("one", node=node, policy=policy))
    nodes.wait_phase(namespace, "one", "Running")

    nodes.exit(namespace, "one", code)

    found = nodes.wait_phase(namespace, "one", phase)["status"]["containerStatuses"][0]
    assert restarts == found["restartCount"]
    ended = found["lastState" if restarts else "state"]["terminated"]
    assert code == ended["exitCode"]


def test_out_of_memory_and_eviction_look_as_they_do_elsewhere(
    scene: Scene, nodes: Nodes, namespace: str
) -> None:
    """The kernel's kill has its reason in the container, an eviction has it in the pod."""
    (node,) = nodes.add(1)
    for name in ("eater", "victim"):
        scene.create(pod(name, node=node))
        nodes.wait_phase(namespace, name, "Running")

    nodes.out_of_memory(namespace, "eater")
    nodes.evict(namespace, "victim")

    eater = nodes.wait_phase(namespace, "eater", "Failed")["status"]["containerStatuses"][0]
    assert "OOMKilled" == eater["state"]["terminated"]["reason"]
    assert "Evicted" == nodes.wait_phase(namespace, "victim", "Failed")["status"]["reason"]


def test_a_deleted_pod_on_a_lost_node_hangs(scene: Scene, nodes: Nodes, namespace: str) -> None:
    """Nobody removes it while its node is lost; the node does when it is back. A stuck one stays anyway."""
    lost, fine = nodes.add(2)
    for name, node, notes in (("hangs", lost, {}), ("goes", fine, {}), ("stuck", fine, {STUCK: "true"})):
        scene.create(pod(name, node=node, notes=notes))
        nodes.wait_phase(namespace, name, "Running")
    nodes.lose(lost)

    for name in ("hangs", "stuck", "goes"):
        scene.kube.api.delete(f"{scene.pods}/{name}")

    scene.kube.wait(lambda: scene.kube.api.find(f"{scene.pods}/goes") is None)
    # The controller-manager took the lost node at its word.
    scene.kube.wait(lambda: scene.kube.api.get(f"/api/v1/nodes/{lost}")["spec"].get("taints"))
    for name in ("hangs", "stuck"):
        assert scene.kube.api.get(f"{scene.pods}/{name}")["metadata"]["deletionTimestamp"]
    nodes.restore(lost)
    scene.kube.wait(lambda: scene.kube.api.find(f"{scene.pods}/hangs") is None)
    assert scene.kube.api.find(f"{scene.pods}/stuck") is not None


# ------------------------------------------------------------------------------------------------ Volcano


@pytest.mark.usefixtures("alone")
def test_a_group_that_does_not_fit_waits_and_says_so(
    scene: Scene, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """It is Pending, with what is lacking in its condition, and comes in when there is room."""
    nodes.add(1)
    scene.create(pod_group("wide", members=2, devices=16))

    scene.wait_group("wide", "Pending")
    expected = (
        "2/0 tasks in gang unschedulable: pod group is not ready, 2 minAvailable: "
        "insufficient huawei.com/Ascend910: 16 requested, 8 free"
    )
    # It may have seen the group before the node; then this is its second word.
    scene.kube.wait(lambda: scene.message("wide") == expected)

    nodes.add(1)
    scene.wait_group("wide", "Inqueue")


@pytest.mark.usefixtures("alone")
def test_a_gang_is_placed_together(
    scene: Scene, nodes: Nodes, volcano: VolcanoStandIn, namespace: str
) -> None:
    """One pod of two is not placed; with the second both run, each with devices of its own."""
    nodes.add(1)
    scene.create(pod_group("pair", members=2, devices=8))
    scene.wait_group("pair", "Inqueue")
    scene.create(pod("pair-0", group="pair", devices=4))
    expected = (
        "2/1 tasks in gang unschedulable: pod group is not ready, 1 Pending, 2 minAvailable; "
        "Pending: 1 Unschedulable"
    )
    scene.kube.wait(lambda: scene.message("pair") == expected)
    assert "nodeName" not in scene.kube.api.get(f"{scene.pods}/pair-0")["spec"]

    scene.create(pod("pair-1", group="pair", devices=4))

    notes = [
        nodes.wait_phase(namespace, name, "Running")["metadata"]["annotations"]
        for name in ("pair-0", "pair-1")
    ]
    devices = [[int(device[-1]) for device in note[NPU].split(",")] for note in notes]
    assert [[0, 1, 2, 3], [4, 5, 6, 7]] == devices
    status = scene.wait_group("pair", "Running")
    scene.kube.wait(lambda: scene.kube.api.get(f"{scene.groups}/pair")["status"].get("running") == 2)
    assert [] == volcano.errors
    assert ["Unschedulable", "Scheduled"] == [found["type"] for found in status["conditions"]]  # type: ignore[attr-defined]


def test_a_group_that_loses_pods_goes_back(
    scene: Scene, nodes: Nodes, volcano: VolcanoStandIn, namespace: str
) -> None:
    """With one pod left it is Unknown; with the second again Running; with none left it waits anew."""
    nodes.add(1)
    scene.create(pod_group("pair", members=2, devices=8))
    for name in ("pair-0", "pair-1"):
        scene.create(pod(name, group="pair", devices=4))
    scene.wait_group("pair", "Running")
    nodes.wait_phase(namespace, "pair-0", "Running")

    scene.kube.api.delete(f"{scene.pods}/pair-1")
    scene.wait_group("pair", "Unknown")

    scene.kube.wait(lambda: scene.kube.api.find(f"{scene.pods}/pair-1") is None)
    scene.create(pod("pair-1", group="pair", devices=4))
    scene.wait_group("pair", "Running")

    for name in ("pair-0", "pair-1"):
        scene.kube.api.delete(f"{scene.pods}/{name}")
    scene.wait_group("pair", "Inqueue")


def test_without_volcano_a_group_has_no_phase(
    scene: Scene, nodes: Nodes, volcano: VolcanoStandIn, namespace: str
) -> None:
    """Stopped, it does nothing, as a scheduler that is down; started, it goes on."""
    nodes.add(1)
    volcano.stop()
    mark = scene.kube.audit.mark()
    scene.create(pod_group("one", members=1, devices=8))
    scene.create(pod("one-0", group="one", devices=8))
    assert [] == scene.kube.audit.writes(since=mark, user_agent="volcano-stand-in")
    assert "" == scene.phase_of_group("one")

    volcano.start()

    nodes.wait_phase(namespace, "one-0", "Running")
