"""The Helm chart and the kustomize base, as text: they agree, and bad settings are refused with a reason."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import taskd
from taskd.testing.kube import require
from tests.deploy.support import BASE, CHART, CRD, ROOT, Document, load
from tools import manifests

MANAGED_BY = "app.kubernetes.io/managed-by"


def render(helm: Path, *settings: str) -> list[Document]:
    """Return the objects of the chart with these settings (as for --set)."""
    arguments = [part for setting in settings for part in ("--set", setting)]
    return load(manifests.template(*arguments, program=str(helm)))


def kustomize(directory: Path) -> str:
    """Return what `kubectl apply -k` would apply."""
    command = [str(require("kubectl")["kubectl"]), "kustomize", str(directory)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def find(objects: list[Document], kind: str, name: str = "taskd-controller") -> Document:
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pod_of(objects: list[Document]) -> Any:
    return find(objects, "Deployment")["spec"]["template"]["spec"]


def by_identity(objects: list[Document]) -> dict[tuple[str, str], Document]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def without_manager(one: Document) -> Document:
    labels = {key: value for key, value in one["metadata"].get("labels", {}).items() if key != MANAGED_BY}
    return {**one, "metadata": {**one["metadata"], "labels": labels}}


def test_the_derived_files_are_up_to_date(helm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make manifests` would change nothing."""
    monkeypatch.setenv("HELM", str(helm))

    stale = [path.name for path, text in manifests.derived().items() if path.read_text("utf-8") != text]

    assert [] == stale


def test_the_plane_comes_with_its_port_rights_and_names(helm: Path) -> None:
    """Where it is switched on."""
    objects = render(helm, "plane.enabled=true", "plane.certificates=keys")
    (container,) = pod_of(objects)["containers"]

    assert {"--plane", "--plane-certificates=/etc/taskd/plane"} <= set(container["args"])
    assert {"name": "plane", "containerPort": 8899} in container["ports"]
    assert "plane" == find(objects, "Service", "taskd-plane")["spec"]["ports"][0]["targetPort"]
    alias = find(objects, "Service", "clusterd-grpc-svc")
    assert ("mindx-dl", "ExternalName") == (alias["metadata"]["namespace"], alias["spec"]["type"])
    assert ["configmaps"] == find(objects, "ClusterRole", "taskd-plane")["rules"][0]["resources"]
    assert not [each for each in render(helm) if each["metadata"]["name"] == "taskd-plane"]


def test_the_plane_makes_certificates_unless_something_else_is_said(helm: Path) -> None:
    """With the rights that this takes, in all namespaces or in the one that is served, and no others."""
    everywhere = render(helm, "plane.enabled=true", "plane.names={plane.example,10.0.0.9}")
    (container,) = pod_of(everywhere)["containers"]
    confined = render(helm, "plane.enabled=true", "namespace=team")

    assert {"--authority=taskd-authority", "--plane-names=plane.example,10.0.0.9"} <= set(container["args"])
    assert not [each for each in container["args"] if "insecure" in each or "plane-certificates" in each]
    assert [("secrets", ("get", "create", "patch"))] == rights(
        find(everywhere, "ClusterRole", "taskd-certificates")
    )
    assert find(everywhere, "ClusterRoleBinding", "taskd-certificates")
    assert "team" == find(confined, "RoleBinding", "taskd-certificates")["metadata"]["namespace"]
    at_home = find(confined, "Role", "taskd-authority")
    assert "taskd-system" == at_home["metadata"]["namespace"]
    assert ["taskd-authority", "taskd-plane-client"] == at_home["rules"][1]["resourceNames"]
    for settings in (
        [],
        ["plane.enabled=true", "plane.insecure=true"],
        ["plane.enabled=true", "plane.certificates=k"],
    ):
        objects = render(helm, *settings)
        roles = [each for each in objects if each["kind"] in {"Role", "ClusterRole"}]
        assert not [right for role in roles for right in rights(role) if right[0] == "secrets"]
    with pytest.raises(manifests.Unrendered, match="same authority"):
        render(helm, "plane.enabled=true", "certificates=mine")


def rights(role: Document) -> list[tuple[str, tuple[str, ...]]]:
    """What a role grants."""
    return [(resource, tuple(rule["verbs"])) for rule in role["rules"] for resource in rule["resources"]]


def test_the_kustomize_base_and_the_chart_install_the_same(helm: Path) -> None:
    """Object by object and field by field, but for the namespace and the label that names the tool."""
    base = by_identity(load(kustomize(BASE)))
    chart = by_identity(render(helm))

    namespace = base.pop(("Namespace", "taskd-system"))
    assert {"pod-security.kubernetes.io/enforce": "restricted", MANAGED_BY: "kustomize"} == namespace[
        "metadata"
    ]["labels"]
    assert chart.keys() == base.keys()
    for identity, one in chart.items():
        assert without_manager(one) == without_manager(base[identity]), identity
    assert {"kustomize"} == {one["metadata"]["labels"][MANAGED_BY] for one in base.values()}


def test_an_overlay_names_the_image(helm: Path, tmp_path: Path) -> None:
    """The kustomization of the guide, with its own directory and an image of one's own."""
    guide = (ROOT / "docs/ascendjob.md").read_text("utf-8")
    (block,) = re.findall(r"```yaml\n# kustomization.yaml\n(.*?)```", guide, re.DOTALL)
    # Kustomize takes no absolute paths.
    text = block.replace("PATH/TO/deploy", "deploy").replace("REGISTRY", "images").replace("VERSION", "v9")
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    (tmp_path / "kustomization.yaml").write_text(text)

    objects = load(kustomize(tmp_path))

    assert "images/taskd:v9" == pod_of(objects)["containers"][0]["image"]


def test_the_chart_carries_the_definition_unchanged(helm: Path) -> None:
    """Byte for byte the file of deploy/crd, with the policy that keeps it when the chart is removed."""
    (definition,) = load(CRD.read_text("utf-8"))

    rendered = find(render(helm), "CustomResourceDefinition", "ascendjobs.mindxdl.gitee.com")

    assert definition == rendered
    assert "keep" == rendered["metadata"]["annotations"]["helm.sh/resource-policy"]
    assert [] == [
        one for one in render(helm, "crd.install=false") if one["kind"] == "CustomResourceDefinition"
    ]


def test_versions_are_those_of_the_package() -> None:
    """Chart, application and image tag follow taskd.__version__."""
    (chart,) = load((CHART / "Chart.yaml").read_text())

    assert (taskd.__version__, taskd.__version__) == (chart["version"], chart["appVersion"])


def test_the_defaults_are_two_careful_replicas(helm: Path) -> None:
    """Leader election, probes, no rights on the node, spread, and a budget for disruptions."""
    objects = render(helm)
    pod = pod_of(objects)
    (container,) = pod["containers"]

    assert 2 == find(objects, "Deployment")["spec"]["replicas"]
    assert "--lease-namespace=$(POD_NAMESPACE)" in container["args"]
    assert "/healthz" == container["livenessProbe"]["httpGet"]["path"]
    assert "/readyz" == container["readinessProbe"]["httpGet"]["path"]
    assert [8080] == [port["containerPort"] for port in container["ports"]]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert ["ALL"] == container["securityContext"]["capabilities"]["drop"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert "kubernetes.io/hostname" == pod["topologySpreadConstraints"][0]["topologyKey"]
    assert 1 == find(objects, "PodDisruptionBudget")["spec"]["minAvailable"]
    assert f"taskd:{taskd.__version__}" == container["image"]


def test_one_namespace_takes_the_rights_elsewhere_away(helm: Path) -> None:
    """A RoleBinding there, and nothing that binds the role in the whole cluster."""
    objects = render(helm, "namespace=team-a")

    bound = {one["metadata"]["namespace"] for one in objects if one["kind"] == "RoleBinding"}
    assert {"team-a", "taskd-system"} == bound
    whole = [one["roleRef"]["name"] for one in objects if one["kind"] == "ClusterRoleBinding"]
    assert ["taskd-controller-cluster"] == whole
    assert "--namespace=team-a" in pod_of(objects)["containers"][0]["args"]


@pytest.mark.parametrize(
    ("setting", "volume"),
    [
        ("rankTable.hostPath=/srv/ranks", {"hostPath": {"path": "/srv/ranks", "type": "Directory"}}),
        ("rankTable.existingClaim=ranks", {"persistentVolumeClaim": {"claimName": "ranks"}}),
    ],
    ids=["hosts", "claim"],
)
def test_rank_tables_may_go_to_files(helm: Path, setting: str, volume: Document) -> None:
    """The volume, its mount and the flag come together."""
    pod = pod_of(render(helm, setting))

    assert {"name": "ranktable", **volume} in pod["volumes"]
    mount = {"name": "ranktable", "mountPath": "/user/mindx-dl/ranktable"}
    assert mount in pod["containers"][0]["volumeMounts"]
    assert "--rank-table-dir=/user/mindx-dl/ranktable" in pod["containers"][0]["args"]


def test_one_replica_without_a_lease_is_never_two(helm: Path) -> None:
    """The old one is gone before the new one starts, and no budget blocks the emptying of its node."""
    objects = render(helm, "replicas=1", "leaderElection.enabled=false")

    assert {"type": "Recreate"} == find(objects, "Deployment")["spec"]["strategy"]
    assert [] == [one for one in objects if one["kind"] == "PodDisruptionBudget"]
    assert "--no-leader-elect" in pod_of(objects)["containers"][0]["args"]


def test_free_settings_reach_the_pod(helm: Path) -> None:
    """Arguments, variables, labels, annotations, node selection, priority and pull secrets."""
    objects = render(
        helm,
        "extraArgs={--one=1,--two}",
        "extraEnv[0].name=A,extraEnv[0].value=b",
        "podLabels.team=x",
        "podAnnotations.note=y",
        "nodeSelector.role=control",
        "tolerations[0].operator=Exists",
        "priorityClassName=system-cluster-critical",
        "image.pullSecrets[0].name=registry",
        "image.repository=images/taskd,image.tag=v9",
    )
    template = find(objects, "Deployment")["spec"]["template"]
    pod = template["spec"]

    assert ["--one=1", "--two"] == pod["containers"][0]["args"][-2:]
    assert {"name": "A", "value": "b"} in pod["containers"][0]["env"]
    assert "x" == template["metadata"]["labels"]["team"]
    assert {"note": "y"} == template["metadata"]["annotations"]
    assert {"role": "control"} == pod["nodeSelector"]
    assert [{"operator": "Exists"}] == pod["tolerations"]
    assert "system-cluster-critical" == pod["priorityClassName"]
    assert [{"name": "registry"}] == pod["imagePullSecrets"]
    assert "images/taskd:v9" == pod["containers"][0]["image"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["leaderElection.enabled=false"], "would act at the same time"),
        (["rankTable.hostPath=/a", "rankTable.existingClaim=b"], "name hostPath or existingClaim, not both"),
        (["gang=maybe"], "gang"),
        (["logLevel=loud"], "logLevel"),
        (["replicas=0"], "replicas"),
        (["replicas=two"], "replicas"),
        (["image.repository="], "repository"),
        (["imagee.tag=1"], "imagee"),
        (["leaderElection.enable=true"], "enable"),
        (["serviceAccount.create=false"], "serviceAccount.name is needed"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_setting_is_refused_with_a_reason(helm: Path, settings: list[str], says: str) -> None:
    """Also one that is only misspelt."""
    with pytest.raises(manifests.Unrendered, match=re.escape(says)):
        render(helm, *settings)


def test_every_setting_has_its_place_in_the_schema(helm: Path) -> None:
    """`helm lint --strict` has nothing to say, and every value of values.yaml is allowed by the schema."""
    done = subprocess.run(
        [helm, "lint", "--strict", str(CHART), "--kube-version", manifests.KUBERNETES],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert 0 == done.returncode, done.stdout


def test_the_controller_takes_every_flag_of_the_chart(helm: Path) -> None:
    """Started with them it complains about nothing but the cluster that is not there."""
    settings = ("namespace=a", "rankTable.hostPath=/a", "certificates=a", "logLevel=debug", "gang=on")
    for more in ((), ("replicas=1", "leaderElection.enabled=false")):
        container = pod_of(render(helm, *settings, *more))["containers"][0]
        assert ["taskd", "controller"] == container["command"]

        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "taskd.cli.main",
                "controller",
                *container["args"],
                "--kubeconfig",
                "/nowhere",
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

        assert "/nowhere" in done.stderr
        assert 0 != done.returncode
