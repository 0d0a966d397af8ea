"""With certificates, a manager speaks for its own job and for no other."""

from typing import Any

import grpc
import pytest
import trustme

from taskd.plane.server import OPERATOR, PlaneConfig, open_plane
from taskd.testing.plane import MemoryCluster, MemoryFaults
from tests.plane.stubs import message

JOB, OTHER = "job-0001", "job-0002"


def secure(port: int, credentials: grpc.ChannelCredentials) -> Any:
    return grpc.aio.secure_channel(f"localhost:{port}", credentials)


@pytest.mark.parametrize(
    ("identity", "job_id", "allowed"),
    [(JOB, JOB, True), (JOB, OTHER, False), (OPERATOR, OTHER, True)],
)
async def test_a_certificate_speaks_for_its_job(identity: str, job_id: str, allowed: bool) -> None:
    """PERMISSION_DENIED for another job; the operator's may speak for all."""
    cluster = MemoryCluster()
    cluster.add_job(JOB)
    cluster.add_job(OTHER)
    authority = trustme.CA()
    server = authority.issue_cert("localhost")
    client = authority.issue_cert(identity)
    root = authority.cert_pem.bytes()
    credentials = grpc.ssl_server_credentials(
        [(server.private_key_pem.bytes(), server.cert_chain_pems[0].bytes())], root, require_client_auth=True
    )
    async with open_plane(
        PlaneConfig(address="localhost:0", credentials=credentials),
        directory=cluster,
        centre=MemoryFaults(cluster),
        config_maps=cluster,
        hands=cluster,
        keeper=cluster,
    ) as plane:
        mine = grpc.ssl_channel_credentials(
            root, client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
        )
        async with secure(plane.port, mine) as channel:
            call: Any = channel.unary_unary("/Recover/Init")(
                message("ClientInfo")(jobId=job_id).SerializeToString(), timeout=10
            )
            if allowed:
                assert 0 == message("Status").FromString(await call).code
            else:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert grpc.StatusCode.PERMISSION_DENIED == caught.value.code()


async def test_nobody_without_a_certificate_gets_in() -> None:
    """The connection itself is refused."""
    cluster = MemoryCluster()
    authority = trustme.CA()
    server = authority.issue_cert("localhost")
    credentials = grpc.ssl_server_credentials(
        [(server.private_key_pem.bytes(), server.cert_chain_pems[0].bytes())],
        authority.cert_pem.bytes(),
        require_client_auth=True,
    )
    async with open_plane(
        PlaneConfig(address="localhost:0", credentials=credentials),
        directory=cluster,
        centre=MemoryFaults(cluster),
        config_maps=cluster,
        hands=cluster,
        keeper=cluster,
    ) as plane:
        only_root = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        async with secure(plane.port, only_root) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/Recover/HealthCheck")(b"", timeout=3)

    assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
