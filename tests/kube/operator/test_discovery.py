"""Volcano may come to a cluster after the controller, and go again."""

from pathlib import Path

from taskd.testing.kube import ControlPlane, Nodes, VolcanoStandIn, install_crds, remove_crds
from tests.kube.operator.site import ROOT, Controller, Site, until
from tests.kube.operator.small import small


def test_gang_scheduling_begins_when_volcano_comes_and_ends_when_it_goes(
    own_kube: ControlPlane, tmp_path: Path
) -> None:
    """Jobs run before, in between and after; only while Volcano is there do they have PodGroups."""
    own_kube.apply_yaml((ROOT / "deploy" / "crd" / "ascendjobs.yaml").read_text())
    Nodes(own_kube).add(2)
    with own_kube.namespace() as namespace:
        site = Site(own_kube, namespace)
        log = tmp_path / "controller.log"
        controller = Controller(own_kube.kubeconfig, namespace, log, "--discovery-s", "0.3").start()
        try:
            assert "gang scheduling is off: the cluster has no PodGroup" in log.read_text()
            site.submit(small("before"))
            site.wait_state("before", "Running")

            install_crds(own_kube)
            until(lambda: log.read_text().count('"synced"') == 2)
            assert "gang scheduling is on" in log.read_text()
            with VolcanoStandIn(own_kube):
                site.submit(small("between"))
                site.wait_state("between", "Running")
            assert {"before", "between"} == {
                group["metadata"]["ownerReferences"][0]["name"] for group in site.groups()
            }
            assert ("Running", 0) == (site.state("before"), site.status("before")["restarts"])

            remove_crds(own_kube)
            until(lambda: log.read_text().count('"synced"') == 3)
            site.submit(small("after"))
            site.wait_state("after", "Running")
        finally:
            assert 0 == controller.stop()
