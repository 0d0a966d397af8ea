"""The pages of the controller, and what it says when it cannot start."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from taskd.testing.kube import Nodes, VolcanoStandIn
from tests.kube.operator.site import ROOT, Controller, Site, until


def port_of(controller: Controller) -> int:
    lines = [json.loads(line) for line in controller.log.read_text().splitlines()]
    return int([line["port"] for line in lines if line["event"] == "controller_started"][-1])


def page(controller: Controller, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port_of(controller)}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_health_readiness_and_metrics(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Jobs by state, restarts by cause, time to running, queue and requests can be read from outside."""
    assert page(controller, "/healthz") == (200, "ok\n")
    assert page(controller, "/readyz") == (200, "leading\n")
    assert page(controller, "/nowhere")[0] == 404
    nodes.add(2, labels={"example-key": "example-value"})
    name = site.submit(site.example("pytorch_multinodes_acjob_910b.yaml"))
    site.wait_state(name, "Running")
    site.kube.kubectl(
        "-n", site.namespace, "delete", "pod", f"{name}-worker-0", "--grace-period=0", "--force"
    )
    until(lambda: site.status(name)["restarts"] == 1)
    site.wait_state(name, "Running")
    code, text = page(controller, "/metrics")
    assert code == 200
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['taskd_controller_jobs{state="Running"}'] == "1.0"
    assert values['taskd_controller_restarts_total{cause="pod-lost"}'] == "1.0"
    assert values["taskd_controller_time_to_running_seconds_count"] == "1.0"
    assert values["taskd_controller_leading"] == "1.0"
    assert float(values["taskd_controller_reconcile_seconds_count"]) > 1
    assert values['taskd_controller_api_requests_total{code="201",method="POST",resource="pods"}'] == "3.0"
    assert "taskd_controller_queue_depth" in values


def start(*flags: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "taskd.cli.main", "controller", *flags]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    return done.returncode, done.stderr


def test_a_controller_that_cannot_start_says_why_and_fails(site: Site, tmp_path: Path) -> None:
    """No cluster, a port that is taken, a setting that is none: one sentence, and not exit code 0."""
    kubeconfig = ("--kubeconfig", str(site.kube.kubeconfig))
    code, text = start("--kubeconfig", str(tmp_path / "none"))
    assert code != 0
    assert "none" in text
    code, text = start(*kubeconfig, "--gang", "maybe")
    assert code != 0
    assert "--gang" in text
    code, text = start(*kubeconfig, "--listen", "127.0.0.1:nothing")
    assert code != 0
    assert "not host:port" in text
    unreachable = tmp_path / "config"
    unreachable.write_text(site.kube.kubeconfig.read_text().replace(site.kube.url, "https://127.0.0.1:9"))
    code, text = start("--kubeconfig", str(unreachable), "--listen", "127.0.0.1:0")
    assert code != 0
    assert "cannot be reached" in text
    assert "Traceback" not in text
