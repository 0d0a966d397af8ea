"""Names of pods and Services: one CoreDNS for all nodes, at this machine's address in their network."""

from pathlib import Path

from taskd.testing.cluster.layout import Layout
from taskd.testing.kube.processes import Program

DOMAIN = "cluster.local"


def program(layout: Layout, binary: Path, kubeconfig: Path, directory: Path) -> Program:
    """Return the program; names outside of the cluster do not exist, and are answered so at once."""
    corefile = directory / "Corefile"
    corefile.write_text(
        f"""{DOMAIN}:53 in-addr.arpa:53 {{
    bind {layout.address}
    errors
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig} test
        ttl 0
    }}
}}
.:53 {{
    bind {layout.address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""
    )
    return Program([binary, f"-conf={corefile}", "-quiet"], log=directory / "coredns.log")
