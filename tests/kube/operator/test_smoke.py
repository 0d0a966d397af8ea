from tests.kube.operator.site import Controller, Site

from taskd.testing.kube import Nodes, VolcanoStandIn


def test_the_sample_of_the_seed_runs(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    nodes.add(2, capacity={"huawei.com/Ascend910": 8}, labels={"example-key": "example-value"})
    name = site.submit(site.example("pytorch_multinodes_acjob_910b.yaml"))
    site.wait_state(name, "Running")
    print(site.status(name), site.env("default-test-pytorch-worker-0"))
