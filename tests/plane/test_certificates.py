"""With certificates, a manager speaks for its own job and for no other; connections outlive renewals."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from taskd.core.certificates import OPERATOR, plane_names
from taskd.kit.issuing import Issued
from taskd.kit.papers import Papers, read_papers
from taskd.links.plane import PlaneAddress, PlaneError, connect_plane
from taskd.links.tls import channel_credentials, from_directory, server_credentials
from taskd.plane.hosting import PlaneSettings, PlaneSettingsError
from taskd.plane.server import InsecureRefused, PlaneConfig, open_plane
from taskd.testing.plane import MemoryCluster, MemoryFaults
from tests.links.papers import DAY_S, authority, job_papers, leaf, show
from tests.plane.stubs import message

JOB, OTHER = "job-0001", "job-0002"
LIMIT_S = 1.0
NAMES = plane_names("taskd-system/taskd-plane")


@contextlib.asynccontextmanager
async def serving(config: PlaneConfig) -> AsyncIterator[int]:
    """A plane with two jobs."""
    cluster = MemoryCluster()
    for job_id in (JOB, OTHER):
        cluster.add_job(job_id)
    async with open_plane(
        config,
        directory=cluster,
        centre=MemoryFaults(cluster),
        config_maps=cluster,
        hands=cluster,
        keeper=cluster,
    ) as plane:
        yield plane.port


@pytest.fixture
def signer() -> Issued:
    return authority()


@pytest.fixture
def home(tmp_path: Path, signer: Issued) -> Path:
    """The plane's own certificates."""
    show(tmp_path / "plane", leaf(signer, *NAMES, server=True), [signer])
    return tmp_path / "plane"


@pytest.fixture
async def port(home: Path) -> AsyncIterator[int]:
    credentials = server_credentials(from_directory(str(home)))
    async with serving(PlaneConfig(address="127.0.0.1:0", credentials=credentials)) as found:
        yield found


def place(port: int, directory: Path, job_id: str = JOB) -> PlaneAddress:
    return PlaneAddress(f"127.0.0.1:{port}", job_id, str(directory))


async def called(port: int, papers: Papers, path: str, request: Any) -> bytes:
    """Call something of the plane with these certificates."""
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", channel_credentials(papers)) as channel:
        call: Any = channel.unary_unary(path)
        answer: bytes = await call(request.SerializeToString(), timeout=LIMIT_S)
        return answer


@pytest.mark.parametrize("identity", [JOB, OPERATOR])
async def test_a_certificate_speaks_for_its_job(
    port: int, tmp_path: Path, signer: Issued, identity: str
) -> None:
    """And the operator's for every job."""
    papers = job_papers(tmp_path / "own", signer, identity)

    async with connect_plane(place(port, Path(papers.directory)), LIMIT_S) as link:
        await link.begin()

    assert link.ours


async def test_another_jobs_certificate_is_refused_with_a_reason(
    port: int, tmp_path: Path, signer: Issued
) -> None:
    """The manager's log says what is wrong."""
    job_papers(tmp_path / "other", signer, OTHER)

    async with connect_plane(place(port, tmp_path / "other"), LIMIT_S) as link:
        with pytest.raises(PlaneError, match=f"PERMISSION_DENIED .* does not speak for job {JOB}"):
            await link.begin()


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("/PubFault/SendPublicFault", message("PublicFaultRequest")()),
        ("/job.Job/Register", message("job.ClientInfo")(role="CCAgent")),
        ("/fault.Fault/Register", message("fault.ClientInfo")(role="x")),
        (
            "/TrainingDataTrace/GetTrainingDataTraceSwitch",
            message("DataStatusReq")(jobNsName=f"default/name-{OTHER}"),
        ),
    ],
)
async def test_what_concerns_others_is_no_jobs_business(
    port: int, tmp_path: Path, signer: Issued, path: str, request_: Any
) -> None:
    """Faults from outside, watching all jobs, another job's switches: the operator's certificate may."""
    own = read_papers(job_papers(tmp_path / "own", signer, JOB).directory)
    operators = read_papers(job_papers(tmp_path / "operator", signer, OPERATOR).directory)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await called(port, own, path, request_)

    assert grpc.StatusCode.PERMISSION_DENIED == caught.value.code()
    await called(port, operators, path, request_)


async def test_a_job_named_by_its_name_is_the_same_job(port: int, tmp_path: Path, signer: Issued) -> None:
    """Its own switches are its own business."""
    own = read_papers(job_papers(tmp_path / "own", signer, JOB).directory)
    request = message("DataStatusReq")(jobNsName=f"default/name-{JOB}")

    await called(port, own, "/TrainingDataTrace/GetTrainingDataTraceSwitch", request)


async def test_nobody_without_a_certificate_gets_in(port: int, signer: Issued, tmp_path: Path) -> None:
    """Neither in the clear, nor with the authority's certificate alone, nor with a stranger's."""
    with pytest.raises(PlaneError):
        async with connect_plane(PlaneAddress(f"127.0.0.1:{port}", JOB), LIMIT_S):
            pass
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await called(
            port, Papers(signer.certificate, b"", b""), "/Recover/HealthCheck", message("ClientInfo")()
        )
    assert grpc.StatusCode.UNAVAILABLE == caught.value.code()
    show(tmp_path / "stranger", leaf(authority(), JOB), [signer])
    with pytest.raises(PlaneError, match="no control plane"):
        async with connect_plane(place(port, tmp_path / "stranger"), LIMIT_S):
            pass


async def test_a_certificate_that_has_ended_is_refused(port: int, tmp_path: Path, signer: Issued) -> None:
    """The plane trusts its authority, and not for ever."""
    job_papers(tmp_path / "ended", signer, JOB, age_s=31 * DAY_S)

    with pytest.raises(PlaneError):
        async with connect_plane(place(port, tmp_path / "ended"), LIMIT_S):
            pass


async def test_a_manager_believes_no_stranger(tmp_path: Path, signer: Issued) -> None:
    """A job's certificate is no plane's, though the same authority signed both."""
    show(tmp_path / "pretender", leaf(signer, OTHER), [signer])
    credentials = server_credentials(from_directory(str(tmp_path / "pretender")))
    job_papers(tmp_path / "own", signer, JOB)
    async with serving(PlaneConfig(address="127.0.0.1:0", credentials=credentials)) as port:
        with pytest.raises(PlaneError, match="Hostname Verification"):
            async with connect_plane(place(port, tmp_path / "own"), LIMIT_S):
                pass


async def test_a_stream_outlives_the_exchange_of_the_authority(
    port: int, home: Path, tmp_path: Path, signer: Issued
) -> None:
    """Step by step as the controller does it; who comes between two steps is let in, too."""
    own, successor = tmp_path / "own", authority()
    job_papers(own, signer, JOB)
    async with connect_plane(place(port, own), LIMIT_S) as link:
        await link.begin()
        signals = asyncio.ensure_future(anext(aiter(link.signals())))

        steps = [
            # The successor is shown, in the job's Secret first or in the plane first.
            (own, leaf(signer, JOB), [signer, successor]),
            (home, leaf(signer, *NAMES, server=True), [signer, successor]),
            # It signs.
            (home, leaf(successor, *NAMES, server=True), [signer, successor]),
            (own, leaf(successor, JOB), [signer, successor]),
            # The old one has ended.
            (own, leaf(successor, JOB), [successor]),
            (home, leaf(successor, *NAMES, server=True), [successor]),
        ]
        for where, shown, trusted in steps:
            show(where, shown, trusted)
            async with connect_plane(place(port, own), LIMIT_S) as another:
                await another.begin()

        assert not signals.done()
        assert 0 == (await link.report_fault([(0, "0")])).code
        assert "stopTrain" == (await asyncio.wait_for(signals, 10)).kind


async def test_without_certificates_insecurity_has_to_be_asked_for() -> None:
    """By name; and not beside certificates."""
    with pytest.raises(InsecureRefused):
        async with serving(PlaneConfig(address="127.0.0.1:0")):
            pass
    with pytest.raises(PlaneSettingsError, match="same authority"):
        PlaneSettings().checked()
    with pytest.raises(PlaneSettingsError, match="not both"):
        PlaneSettings(certificates="/somewhere", insecure=True).checked()
    assert PlaneSettings(issued=True) == PlaneSettings(issued=True).checked()
