"""A cluster for a look around: what the tests have, until Ctrl-C."""

import signal
import sys
import threading

from taskd.testing.kube.controlplane import ControlPlane
from taskd.testing.kube.nodes import Kubelets, Nodes
from taskd.testing.kube.volcano import VolcanoStandIn


def run() -> int:
    """Start everything, say how to use it, and wait."""
    ended = threading.Event()
    for how in (signal.SIGINT, signal.SIGTERM):
        signal.signal(how, lambda *_: ended.set())
    with ControlPlane() as kube, Kubelets(kube), VolcanoStandIn(kube):
        names = Nodes(kube).add(2)
        sys.stdout.write(
            f"Ready, with the nodes {', '.join(names)} and Volcano's stand-in; Ctrl-C ends it.\n"
            f"export KUBECONFIG={kube.kubeconfig}\n{kube.kubectl_path} get nodes\n"
        )
        sys.stdout.flush()
        ended.wait()
    return 0
