"""The caches from which the fault centre learns, each of one kind of object."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from taskd.core.acjob.names import RESET_LABEL
from taskd.core.faults import policy, public
from taskd.core.faults.texts import kept
from taskd.kube.client import KubeClient
from taskd.kube.informer import Informer
from taskd.kube.objects import ConfigMap, Json, Node, Pod
from taskd.kube.resources import ASCENDJOB, CONFIG_MAP, NODE, POD
from taskd.plane.names import CONSUMER_CIM, OURS, PlaneNames


@dataclass(slots=True)
class Sources:
    """Every cache; those of jobs, pods and nodes may be shared with whoever has them already."""

    jobs: Informer[Json]
    pods: Informer[Pod]
    nodes: Informer[Node]
    devices: Informer[ConfigMap]
    hardware: Informer[ConfigMap]
    public: Informer[ConfigMap]
    config: Informer[ConfigMap]
    manual: Informer[ConfigMap]
    resets: Informer[ConfigMap]
    shared: frozenset[str] = frozenset()
    """The names of those that somebody else runs."""

    @classmethod
    def make(
        cls,
        client: KubeClient,
        names: PlaneNames,
        *,
        jobs: Informer[Json] | None = None,
        pods: Informer[Pod] | None = None,
        nodes: Informer[Node] | None = None,
    ) -> Sources:
        """Make what is not given."""
        given = {"jobs": jobs, "pods": pods, "nodes": nodes}
        return cls(
            jobs if jobs is not None else Informer(client, ASCENDJOB, namespace=names.jobs),
            pods if pods is not None else Informer(client, POD, namespace=names.jobs, label_selector=OURS),
            nodes if nodes is not None else Informer(client, NODE),
            Informer(client, CONFIG_MAP, namespace=names.devices, label_selector=CONSUMER_CIM),
            Informer(client, CONFIG_MAP, namespace=names.components, label_selector=CONSUMER_CIM),
            Informer(client, CONFIG_MAP, namespace=names.public, label_selector=f"{public.LABEL}=true"),
            _named(client, names.shared, policy.CONFIG_MAP),
            _named(client, names.shared, kept.MANUAL_CM),
            Informer(client, CONFIG_MAP, namespace=names.jobs, label_selector=f"{RESET_LABEL}=true"),
            frozenset(name for name, informer in given.items() if informer is not None),
        )

    def all(self) -> Iterator[tuple[str, Informer[Any]]]:
        """Every cache with its name."""
        for name in ("jobs", "pods", "nodes", "devices", "hardware", "public", "config", "manual", "resets"):
            yield name, getattr(self, name)

    def own(self) -> Iterator[Informer[Any]]:
        """Those that have to be run here."""
        return (informer for name, informer in self.all() if name not in self.shared)

    async def synced(self) -> None:
        """Wait until every cache has its first list."""
        await asyncio.gather(*(informer.synced() for _, informer in self.all()))

    @property
    def healthy(self) -> bool:
        """Whether every cache follows the server."""
        return all(informer.is_synced and informer.is_healthy for _, informer in self.all())


def _named(client: KubeClient, namespace: str, name: str) -> Informer[ConfigMap]:
    return Informer(client, CONFIG_MAP, namespace=namespace, field_selector=f"metadata.name={name}")
