"""Certificates on a real API server: the authority, each job's Secret, and the plane that asks for them."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from taskd.core.acjob import job as jobs
from taskd.core.certificates import AUTHORITY_S, DAY_S, LEAF_S, ROTATE_S, SPREAD_S
from taskd.kit.issuing import read_certificates, read_pair
from taskd.kube.client import KubeClient
from taskd.kube.config import load_config
from taskd.links.plane import PlaneAddress, PlaneError, connect_plane
from taskd.operator.authority import AuthorityKeeper
from taskd.operator.jobcertificates import JobCertificates
from taskd.testing.kube import Nodes
from tests.kube.operator.conftest import _end
from tests.kube.operator.site import Controller, Json, Site, until
from tests.kube.operator.small import delete_pod, small, uid, wait_replaced
from tests.kube.plane.manager import find_port

PLANE = ("--no-leader-elect", "--gang", "off", "--plane", "--plane-listen", "127.0.0.1:0")
SECRETS = "/api/v1/namespaces/{}/secrets"
PATH = "/user/taskd/certificates"


def secret(site: Site, name: str) -> Json | None:
    return site.kube.api.find(f"{SECRETS.format(site.namespace)}/{name}")


def content(found: Json | None) -> dict[str, bytes]:
    assert found is not None
    return {key: base64.b64decode(value) for key, value in found["data"].items()}


def running(site: Site, name: str = "job", **more: Any) -> str:
    """Submit a job and wait until it runs; returns its UID."""
    site.submit(small(name, **more))
    site.wait_state(name, "Running")
    return str(site.job(name)["metadata"]["uid"])


def files_of(site: Site, job: str, home: Path) -> Path:
    """A job's Secret as its pods see it."""
    home.mkdir()
    for name, data in content(secret(site, f"taskd-certificates-{job}")).items():
        (home / name).write_bytes(data)
    return home


@pytest.fixture
def certifying(site: Site, nodes: Nodes, tmp_path: Path) -> Iterator[Controller]:
    """A controller that serves the plane and was told nothing about certificates."""
    nodes.add(1)
    process = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "controller.log", *PLANE).start()
    yield process
    _end(process)
    assert "PRIVATE" not in process.log.read_text()


def test_a_job_has_a_secret_before_it_has_pods(site: Site, certifying: Controller) -> None:
    """It belongs to the job by UID and names it; every pod sees it where its environment says."""
    since = site.kube.audit.mark()
    own = running(site)
    found = secret(site, "taskd-certificates-job")
    assert found is not None
    data = content(found)

    assert [own] == [owner["uid"] for owner in found["metadata"]["ownerReferences"]]
    assert (own,) == read_pair(data["tls.crt"], data["tls.key"]).names
    (authority,) = read_certificates(data["ca.crt"])
    assert content(secret(site, "taskd-authority"))["tls.crt"] == authority[1]
    for pod in ("job-master-0", "job-worker-0"):
        spec = site.pod(pod)["spec"]
        mounts = {mount["mountPath"]: mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert {"secretName": "taskd-certificates-job", "defaultMode": 0o400} == volumes[mounts[PATH]][
            "secret"
        ]
        assert PATH == site.env(pod)["TASKD_CERTIFICATES"]
    operators = content(until(lambda: secret(site, "taskd-plane-client")))
    assert ("taskd-operator",) == read_pair(operators["tls.crt"], operators["tls.key"]).names
    writes = site.kube.audit.writes(since=since, namespace=site.namespace, user_agent="taskd-controller/")
    made = [request.resource for request in writes if request.verb == "create"]
    assert made.index("secrets") < made.index("pods"), made


async def test_a_job_reaches_the_plane_with_its_own_secret_only(
    site: Site, certifying: Controller, tmp_path: Path
) -> None:
    """Another job's is refused with the reason, and nobody comes without any."""
    own = running(site)
    running(site, "other")
    port = until(lambda: find_port(certifying.log))
    mine, others = (files_of(site, job, tmp_path / job) for job in ("job", "other"))
    address = f"127.0.0.1:{port}"

    async with connect_plane(PlaneAddress(address, own, str(mine)), 10) as link:
        # The job is known and was asked nothing of: this is the plane's own answer.
        with pytest.raises(PlaneError, match="process recover enable not open"):
            await link.begin()
    async with connect_plane(PlaneAddress(address, own, str(others)), 10) as link:
        with pytest.raises(PlaneError, match=f"PERMISSION_DENIED .* does not speak for job {own}"):
            await link.begin()
    with pytest.raises(PlaneError):
        async with connect_plane(PlaneAddress(address, own), 2):
            pass


@pytest.mark.parametrize(
    "changes",
    [
        {"annotations": {"taskd.io/leave-template": "true"}},
        {
            "container": {"volumeMounts": [{"name": "mine", "mountPath": PATH}]},
            "pod": {"volumes": [{"name": "mine", "emptyDir": {}}]},
        },
    ],
)
def test_who_wants_none_gets_none(site: Site, certifying: Controller, changes: Any) -> None:
    """The template stays as it is, and there is no Secret."""
    running(site, **changes)

    assert None is secret(site, "taskd-certificates-job")
    assert "TASKD_CERTIFICATES" not in site.env("job-master-0")


def test_a_secret_goes_with_its_job_and_comes_with_the_next(site: Site, certifying: Controller) -> None:
    """A job made again at once under the same name has one of its own."""
    first = running(site)
    site.delete("job")
    second = running(site)
    data = content(secret(site, "taskd-certificates-job"))

    assert first != second
    assert (second,) == read_pair(data["tls.crt"], data["tls.key"]).names
    site.delete("job")
    until(lambda: secret(site, "taskd-certificates-job") is None)


def test_a_secret_that_was_deleted_comes_back_with_the_next_pods(site: Site, certifying: Controller) -> None:
    """The pod that is made then would not start without."""
    running(site)
    site.kube.api.delete(f"{SECRETS.format(site.namespace)}/taskd-certificates-job")

    def back() -> bool:
        # What was looked at just now is not looked at again.
        before = uid(site, "job-worker-0")
        delete_pod(site, "job-worker-0")
        wait_replaced(site, "job-worker-0", before)
        return secret(site, "taskd-certificates-job") is not None

    until(back)


def test_a_user_may_bring_the_authority(site: Site, nodes: Nodes, tmp_path: Path) -> None:
    """It signs, and is not changed."""
    nodes.add(1)
    brought = trustme.CA()
    made = site.kube.api.create(
        SECRETS.format(site.namespace),
        {
            "metadata": {"name": "taskd-authority"},
            "type": "kubernetes.io/tls",
            "stringData": {
                "tls.crt": brought.cert_pem.bytes().decode(),
                "tls.key": brought.private_key_pem.bytes().decode(),
            },
        },
    )
    process = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "controller.log", *PLANE).start()
    try:
        running(site)
    finally:
        _end(process)

    data = content(secret(site, "taskd-certificates-job"))
    ((authority, _),) = read_certificates(brought.cert_pem.bytes())
    assert authority.key == read_pair(data["tls.crt"], data["tls.key"]).signed_by
    after = secret(site, "taskd-authority")
    assert after is not None
    assert made["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]


def test_an_authority_that_cannot_sign_is_told_and_no_job_starts_without(
    site: Site, nodes: Nodes, tmp_path: Path
) -> None:
    """The state of the job has the reason; what is mended is noticed."""
    nodes.add(1)
    place = SECRETS.format(site.namespace)
    site.kube.api.create(place, {"metadata": {"name": "taskd-authority"}, "stringData": {"tls.crt": "no"}})
    process = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "controller.log", *PLANE).start()
    try:
        site.submit(small("job"))
        said = site.wait_state("job", "Created", "SyncCertificatesFailed")["message"]
        assert "taskd-authority" in said
        assert {} == site.pods("job")
        site.kube.api.delete(f"{place}/taskd-authority")
        site.wait_state("job", "Running")
    finally:
        _end(process)


def test_jobs_from_before_stay_as_they_are(site: Site, nodes: Nodes, tmp_path: Path) -> None:
    """A pod that is replaced joins the others, who have no certificates; a job that starts anew has some."""
    nodes.add(1)
    log = tmp_path / "controller.log"
    before = Controller(site.kube.kubeconfig, site.namespace, log, *PLANE, "--plane-insecure").start()
    running(site)
    _end(before)
    assert None is secret(site, "taskd-certificates-job")
    process = Controller(site.kube.kubeconfig, site.namespace, log, *PLANE).start()
    try:
        old = uid(site, "job-worker-0")
        delete_pod(site, "job-worker-0")
        wait_replaced(site, "job-worker-0", old)
        assert "TASKD_CERTIFICATES" not in site.env("job-worker-0")

        site.patch("job", {"spec": {"runPolicy": {"suspend": True}}})
        until(lambda: not site.pods("job"))
        site.patch("job", {"spec": {"runPolicy": {"suspend": False}}})
        site.wait_state("job", "Running")
        for pod in ("job-master-0", "job-worker-0"):
            assert PATH == site.env(pod)["TASKD_CERTIFICATES"]
    finally:
        _end(process)


# --- time passes -----------------------------------------------------------------------------------------


class Death(Exception):
    """The controller is killed."""


class Mortal:
    """A client that dies at one of its writes, before it is done or after."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.strike = (0, "")
        self.writes = 0

    async def _write(self, name: str, *args: Any, **options: Any) -> Any:
        self.writes += 1
        number, way = self.strike
        if self.writes == number and way == "before":
            raise Death
        answer = await getattr(self.client, name)(*args, **options)
        if self.writes == number:
            raise Death
        return answer

    async def get(self, *args: Any) -> Any:
        return await self.client.get(*args)

    async def create(self, *args: Any) -> Any:
        return await self._write("create", *args)

    async def patch(self, *args: Any, **options: Any) -> Any:
        return await self._write("patch", *args, **options)


class Years:
    """A controller's certificates through the years, on the real API server; it may die at any write."""

    def __init__(self, site: Site, client: KubeClient) -> None:
        self.site = site
        self.mortal = Mortal(client)
        self.ahead_s = 0.0
        self.job = jobs.read(site.job("job"))
        self.begin()

    def begin(self) -> None:
        """Start a controller; it remembers nothing."""
        client: Any = self.mortal
        self.keeper = AuthorityKeeper(client, self.site.namespace, "taskd-authority", self.clock)
        self.keeper.call_plane(("plane.example",))
        self.certificates = JobCertificates(client, self.keeper)

    def clock(self) -> float:
        return time.time() + self.ahead_s

    async def look(self) -> None:
        """Look at everything, again if death comes in between."""
        for _ in range(2):
            try:
                await self.keeper.look()
                assert None is await self.certificates.sync(self.job)
            except Death:
                self.begin()
            else:
                return
        raise AssertionError("died twice")

    def seen(self) -> tuple[Any, list[Any]]:
        """The job's certificate, and the authorities that it is shown."""
        data = content(secret(self.site, "taskd-certificates-job"))
        bundle = [facts for facts, _ in read_certificates(data["ca.crt"])]
        return read_pair(data["tls.crt"], data["tls.key"]), bundle

    def check(self) -> None:
        """The job and the plane trust each other."""
        leaf, bundle = self.seen()
        papers = self.keeper.server_papers()
        plane = read_certificates(papers.certificate)[0][0]
        trusted_by_plane = {facts.key for facts, _ in read_certificates(papers.ca)}
        assert leaf.signed_by in trusted_by_plane
        assert plane.signed_by in {each.key for each in bundle}
        assert leaf.begins <= self.clock() < leaf.ends
        assert plane.begins <= self.clock() < plane.ends


@pytest.fixture
async def years(site: Site) -> AsyncIterator[Years]:
    """No controller runs: the test is one."""
    site.submit(small("job"))
    async with KubeClient(load_config(site.kube.kubeconfig)) as client:
        yield Years(site, client)


STOPS = (
    0.0,
    LEAF_S * 2 / 3 + DAY_S,
    AUTHORITY_S - ROTATE_S + DAY_S,
    AUTHORITY_S - ROTATE_S + SPREAD_S + 2 * DAY_S,
    AUTHORITY_S - ROTATE_S + LEAF_S,
    AUTHORITY_S + DAY_S,
)


async def live_through(years: Years) -> list[str]:
    """Stop where something is to be done; returns what the job showed at each."""
    shown = []
    for years.ahead_s in STOPS:
        await years.look()
        years.check()
        leaf, bundle = years.seen()
        shown.append(f"{leaf.signed_by == bundle[0].key} {len(bundle)}")
    return shown


async def test_certificates_are_renewed_and_the_authority_is_exchanged(years: Years) -> None:
    """Renewed; a successor is shown; what the old one signed holds on; the successor signs, and is alone."""
    shown = await live_through(years)

    assert ["True 1", "True 1", "True 2", "True 2", "False 2", "True 1"] == shown


async def test_a_look_that_finds_all_well_writes_nothing(years: Years) -> None:
    """However often."""
    await years.look()
    before = years.mortal.writes
    years.begin()
    await years.look()

    assert before == years.mortal.writes
    assert not years.certificates.is_due(years.job.uid)
    years.ahead_s = LEAF_S
    assert years.certificates.is_due(years.job.uid)


async def test_the_plane_is_called_by_its_new_address_at_once(years: Years) -> None:
    """Its Service was made anew: the next connection sees a certificate for where it is now."""
    await years.look()
    years.keeper.call_plane(("plane.example", "10.96.0.77"))

    (shown, _) = read_certificates(years.keeper.server_papers().certificate)[0]
    assert ("plane.example", "10.96.0.77") == shown.names


@pytest.mark.parametrize("way", ["before", "after"])
async def test_death_between_any_two_writes_is_harmless(years: Years, way: str) -> None:
    """Whoever comes next ends at the same point, and in between nobody is locked out."""
    wanted = await live_through(years)
    count = years.mortal.writes
    assert count >= 7
    for number in range(1, count + 1):
        for name in ("taskd-authority", "taskd-certificates-job"):
            years.site.kube.api.delete(f"{SECRETS.format(years.site.namespace)}/{name}")
        years.begin()
        years.mortal.writes, years.mortal.strike = 0, (number, way)

        assert wanted == await live_through(years)


async def test_two_that_found_an_authority_at_once_agree(years: Years) -> None:
    """A replica that did not know it leads no more, say: one of the two is kept by both."""
    client: Any = years.mortal
    another = AuthorityKeeper(client, years.site.namespace, "taskd-authority", years.clock)
    await years.keeper.look()
    await another.look()

    assert years.keeper.kept().bundle_pem == another.kept().bundle_pem
