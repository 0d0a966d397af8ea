"""The plane in its host: caches, fault centre, sessions and the gRPC port, as one task.

It runs where the operator leads, with the operator's own caches of jobs, pods and nodes, so a second list of
all pods is not kept. Everything that it knows beyond that is in the cluster.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from taskd.kit.papers import PapersError, read_papers
from taskd.kube.client import KubeClient
from taskd.kube.events import EventRecorder
from taskd.kube.informer import Informer
from taskd.kube.objects import Json, Node, Pod
from taskd.links.tls import Current, from_directory, server_credentials
from taskd.plane.directory import Directory
from taskd.plane.faultcentre import FaultCentre
from taskd.plane.hands import ClusterHands
from taskd.plane.isolating import Isolation
from taskd.plane.jobmaps import JobConfigMaps
from taskd.plane.keeping import StateMaps
from taskd.plane.names import PlaneNames
from taskd.plane.server import PlaneConfig, open_plane
from taskd.plane.sources import Sources

log = structlog.get_logger("taskd.plane")


class PlaneSettingsError(ValueError):
    """The plane cannot be started with these settings."""


@dataclass(frozen=True, slots=True)
class PlaneSettings:
    """How the plane is to be hosted."""

    address: str = "0.0.0.0:8899"
    certificates: str = ""
    insecure: bool = False
    names: PlaneNames = field(default_factory=PlaneNames)
    issued: bool = False
    """Whether the certificates are the controller's own, which come when the plane is started."""

    def checked(self) -> PlaneSettings:
        """The same, once it is sure that a plane can be served so; else PlaneSettingsError."""
        if self.certificates and self.insecure:
            raise PlaneSettingsError("name certificates for the plane, or say --plane-insecure; not both")
        if not (self.certificates or self.insecure or self.issued):
            raise PlaneSettingsError(
                "jobs are given the Secret that --certificates names, so the plane needs certificates of the "
                "same authority (--plane-certificates); or leave both out, and the controller makes them"
            )
        if self.certificates:
            try:
                read_papers(self.certificates)
            except PapersError as error:
                raise PlaneSettingsError(f"the plane's certificates: {error}") from error
        return self


@dataclass(slots=True)
class Host:
    """Runs a plane beside an operator; `run` until cancelled."""

    settings: PlaneSettings
    port: int = 0

    async def run(
        self,
        client: KubeClient,
        *,
        jobs: Informer[Json],
        pods: Informer[Pod],
        nodes: Informer[Node],
        recorder: EventRecorder,
        groups: bool,
        papers: Current | None = None,
    ) -> None:
        """Serve with the caches of the operator, which are filled and run by it.

        `papers` gives the certificates where the settings name none; whatever is renewed is used from the
        next connection on.
        """
        if self.settings.certificates:
            papers = from_directory(self.settings.certificates)
        credentials = server_credentials(papers) if papers is not None else None
        config = PlaneConfig(self.settings.address, credentials, insecure=self.settings.insecure)
        sources = Sources.make(client, self.settings.names, jobs=jobs, pods=pods, nodes=nodes)
        centre = FaultCentre(client, self.settings.names, sources=sources)
        directory = Directory(sources)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(centre.run())
            await centre.started()
            directory.connect()
            isolation = Isolation(client, sources, centre)
            try:
                async with open_plane(
                    config,
                    directory=directory,
                    centre=centre,
                    config_maps=JobConfigMaps(client, sources.resets),
                    hands=ClusterHands(client, sources, recorder, groups=groups, isolation=isolation),
                    keeper=StateMaps(client, directory, self.settings.names.jobs),
                ) as plane:
                    self.port = plane.port
                    await asyncio.Event().wait()
            finally:
                self.port = 0
                isolation.close()
                directory.close()
