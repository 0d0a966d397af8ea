"""Those who act beside the operators, each as a process of its own, so that nobody shares their core time.

    python -m kubeop.actor create KUBECONFIG NAMESPACE FILE     # make what FILE lists, with 8 connections
    python -m kubeop.actor admit KUBECONFIG NAMESPACE           # let every new PodGroup in, until ended
    python -m kubeop.actor run KUBECONFIG NAMESPACE             # write Running into the status of every pod

FILE has one JSON list per line: [[resource, manifest], ...]. The objects of one line are made in order,
except that pods of a line are made side by side; lines are made side by side.
"""

import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from taskd.kube.client import KubeClient
from taskd.kube.config import load_config
from taskd.kube.resources import ASCENDJOB, POD, POD_GROUP, SERVICE, Resource
from taskd.kube.transport import Limits

CONNECTIONS = 8
_JSON: Any = dict[str, Any]
RESOURCES: dict[str, Resource[Any]] = {
    "pods": POD,
    "services": SERVICE,
    "podgroups": POD_GROUP,
    "ascendjobs": ASCENDJOB,
    "pytorchjobs": Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", namespaced=True, model=_JSON),
    "jobsets": Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", namespaced=True, model=_JSON),
}


async def create(client: KubeClient, namespace: str, path: Path) -> None:
    """Make everything, always with as many requests under way as there are connections."""
    lines = [
        [(RESOURCES[kind], msgspec.json.encode(manifest)) for kind, manifest in json.loads(line)]
        for line in path.read_text().splitlines()
    ]
    # Objects that pods need come first; then all pods of all lines are equal.
    first = iter([entry for line in lines for entry in line if entry[0] is not POD])
    pods = iter([entry for line in lines for entry in line if entry[0] is POD])

    async def work() -> None:
        for source in (first, pods):
            for resource, body in source:
                await client.create(resource, namespace, body)

    print("ready", flush=True)
    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))


async def admit(client: KubeClient, namespace: str) -> None:
    """Move each PodGroup to Inqueue as soon as it is there, as Volcano does where there is room."""
    listing = await client.list(POD_GROUP, namespace)
    assert not listing.items
    print("ready", flush=True)
    version, running = listing.resource_version, set()
    while True:
        events = client.watch(POD_GROUP, namespace, resource_version=version)
        async with aclosing(events) as stream:
            async for event in stream:
                group = event.object
                if group is None:
                    version = event.bookmark
                    continue
                version = group.metadata.resource_version
                if event.type == "ADDED" and not group.status.phase:
                    patch = {"status": {"phase": "Inqueue"}}
                    task = asyncio.create_task(client.patch(POD_GROUP, namespace, group.metadata.name, patch))
                    running.add(task)
                    task.add_done_callback(running.discard)


async def run_pods(client: KubeClient, namespace: str) -> None:
    """Say of every pod that it runs, as kubelets would."""
    names = iter([pod.metadata.name for pod in (await client.list(POD, namespace)).items])
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}

    async def work() -> None:
        for name in names:
            await client.patch(POD, namespace, name, {"status": status}, subresource="status")

    print("ready", flush=True)
    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))


async def main(arguments: list[str]) -> None:
    """Do what the command line says."""
    what, kubeconfig, namespace, *rest = arguments
    async with KubeClient(load_config(kubeconfig), Limits(connections=CONNECTIONS)) as client:
        match what:
            case "create":
                await create(client, namespace, Path(rest[0]))
            case "admit":
                await admit(client, namespace)
            case "run":
                await run_pods(client, namespace)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
