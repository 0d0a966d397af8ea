"""What the client does when the server is busy, gone, slow or picky; the rest is tested on a real one."""

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

import taskd
from taskd.kube.client import KubeClient
from taskd.kube.config import ClusterConfig, load_config
from taskd.kube.errors import ApiError, ApiUnreachable, ConfigError, NotLeader
from taskd.kube.resources import ASCENDJOB, CRD, NODE, POD, POD_GROUP, SERVICE
from taskd.kube.transport import Call, Limits

from .fake_api import FakeApi, pod, status


def busy(code: int, after: str | None) -> web.Response:
    headers = {} if after is None else {"Retry-After": after}
    return web.json_response(status(code, "TooManyRequests", "slow down"), status=code, headers=headers)


async def test_a_busy_server_is_obeyed() -> None:
    """429 and 503 with Retry-After: the same request once more, after the time asked for."""
    api = FakeApi(refusals=[busy(429, "0"), busy(503, "0")])
    async with api.serve() as config, KubeClient(config) as client:
        made = await client.create(POD, "default", pod("a"))

        assert "a" == made.metadata.name
        assert 3 == api.count("POST")


async def test_patience_has_an_end() -> None:
    """A server that stays busy is an error in the end, with its wish in it."""
    api = FakeApi(refusals=[busy(429, "0") for _ in range(10)])
    async with api.serve() as config, KubeClient(config, Limits(retries=2)) as client:
        with pytest.raises(ApiError) as caught:
            await client.get(POD, "default", "a")

        assert (429, 0.0, 3) == (caught.value.status_code, caught.value.retry_after, api.count("GET"))

    api = FakeApi(refusals=[busy(429, "3600")])
    async with api.serve() as config, KubeClient(config, Limits(patience_s=1)) as client:
        with pytest.raises(ApiError):
            await client.get(POD, "default", "a")


async def test_an_overload_without_a_wish_is_the_callers() -> None:
    """Without Retry-After nothing is repeated: the caller has its own back-off."""
    api = FakeApi(refusals=[busy(503, None)])
    async with api.serve() as config, KubeClient(config) as client:
        with pytest.raises(ApiError) as caught:
            await client.get(POD, "default", "a")

        assert caught.value.is_transient
        assert 1 == api.count("GET")


async def test_nobody_there_is_unreachable() -> None:
    """A refused connection says what was asked for."""
    async with KubeClient(ClusterConfig("http://127.0.0.1:9")) as client:
        with pytest.raises(ApiUnreachable, match="GET /api/v1/namespaces/default/pods/a"):
            await client.get(POD, "default", "a")


async def test_no_answer_is_unreachable() -> None:
    """A server that takes the request and says nothing costs the request's limit, no more."""

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, KubeClient(ClusterConfig(f"http://127.0.0.1:{port}"), Limits(request_s=0.2)) as client:
        began = time.monotonic()
        with pytest.raises(ApiUnreachable, match="in time"):
            await client.get(POD, "default", "a")

        assert time.monotonic() - began < 5
    await asyncio.sleep(0.05)


async def test_waiting_for_a_connection_does_not_count_as_slowness() -> None:
    """Thirty requests on one connection all end well, although together they last longer than the limit."""

    class Slow(FakeApi):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(0.1)
            return await super().handle(request)

    async with Slow().serve() as config, KubeClient(config, Limits(connections=1, request_s=2)) as client:
        made = await asyncio.gather(*(client.create(POD, "default", pod(f"p{n}")) for n in range(30)))

        assert 30 == len(made)


async def test_an_expired_page_begins_the_list_anew() -> None:
    """Nothing is there twice, and nothing is missing."""
    api = FakeApi(expire_pages=True)
    for number in range(25):
        api.put(pod(f"p{number:02}"))
    async with api.serve() as config, KubeClient(config) as client:
        listing = await client.list(POD, "default", page=10)

        assert [f"p{number:02}" for number in range(25)] == [p.metadata.name for p in listing.items]
        assert "25" == listing.resource_version


async def test_the_token_file_is_read_again_when_the_token_is_refused(tmp_path: Path) -> None:
    """A rotated token costs one repetition and no error."""
    token = tmp_path / "token"
    token.write_text("old\n")
    api = FakeApi()
    async with (
        api.serve() as config,
        KubeClient(ClusterConfig(config.server, token_file=str(token))) as client,
    ):
        await client.list(POD, "default")
        token.write_text("new\n")
        await client.list(POD, "default")
        api.refusals.append(web.json_response(status(401, "Unauthorized"), status=401))
        await client.list(POD, "default")

        assert ["Bearer old", "Bearer old", "Bearer old", "Bearer new"] == [
            seen.headers["Authorization"] for seen in api.seen
        ]


async def test_a_plugin_provides_the_token(tmp_path: Path) -> None:
    """The user's exec section is run, and again after a 401."""
    plugin = tmp_path / "plugin"
    plugin.write_text(
        '#!/bin/sh\necho x >> "$LOG"\n'
        'echo "{\\"kind\\":\\"ExecCredential\\",\\"status\\":{\\"token\\":\\"t$(wc -l < "$LOG")\\"}}"\n'
    )
    plugin.chmod(0o755)
    api = FakeApi()
    async with api.serve() as config:
        file = tmp_path / "config"
        env = [{"name": "LOG", "value": str(tmp_path / "log")}]
        file.write_text(kubeconfig(config.server, user={"exec": {"command": str(plugin), "env": env}}))
        async with KubeClient(load_config(file)) as client:
            await client.list(POD, "default")
            await client.list(POD, "default")
            api.refusals.append(web.json_response(status(401, "Unauthorized"), status=401))
            await client.list(POD, "default")

    assert ["t1", "t1", "t1", "t2"] == [s.headers["Authorization"].split()[1].strip() for s in api.seen]


async def test_a_guard_stops_every_write_and_no_reading() -> None:
    """Whoever lost the lease can look but not touch; the guard is asked right before sending."""
    allowed = True

    def guard() -> float:
        if not allowed:
            raise NotLeader("lost")
        return 5.0

    api = FakeApi()
    async with api.serve() as config, KubeClient(config) as client:
        writer = client.guarded(guard)
        await writer.create(POD, "default", pod("a"))
        allowed = False
        before = len(api.seen)
        for write in (
            writer.create(POD, "default", pod("b")),
            writer.replace(POD, "default", "a", pod("a")),
            writer.apply(POD, "default", "a", pod("a"), field_manager="t"),
            writer.patch(POD, "default", "a", {}),
            writer.delete(POD, "default", "a"),
        ):
            with pytest.raises(NotLeader):
                await write

        assert before == len(api.seen)

        await writer.list(POD, "default")


async def test_the_guard_is_asked_in_the_moment_of_writing() -> None:
    """Lost between the call and the bytes: nothing reaches the server, and the client goes on working."""
    asked = 0

    def guard() -> float:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise NotLeader("lost on the way")
        return 5.0

    api = FakeApi()
    async with api.serve() as config, KubeClient(config) as client:
        writer = client.guarded(guard)
        with pytest.raises(NotLeader, match="on the way"):
            await writer.create(POD, "default", pod("a"))

        assert [] == api.seen

        await writer.create(POD, "default", pod("a"))

        assert [b'{"apiVersion":"v1","kind":"Pod"'] == [seen.body[:31] for seen in api.seen]
        assert "application/json" == api.seen[0].headers["Content-Type"]


async def test_every_request_names_us_and_is_counted() -> None:
    """The server's audit log shows who asked; the metrics show what was asked."""
    calls: list[Call] = []
    api = FakeApi()
    async with api.serve() as config, KubeClient(config, observe=calls.append) as client:
        await client.create(POD, "default", pod("a"))
        with pytest.raises(ApiError):
            await client.create(POD, "default", pod("a"))

    assert {f"taskd-controller/{taskd.__version__}"} == {seen.headers["User-Agent"] for seen in api.seen}
    assert [("POST", "pods", 201), ("POST", "pods", 409)] == [(c.method, c.resource, c.status) for c in calls]


async def test_a_page_of_html_is_an_error_of_bounded_length() -> None:
    """A proxy in between answers with something else."""
    api = FakeApi(refusals=[web.Response(status=502, text="<html>" + "x" * 10_000)])
    async with api.serve() as config, KubeClient(config) as client:
        with pytest.raises(ApiError, match="502 Unknown: <html>") as caught:
            await client.get(POD, "default", "a")

    assert len(str(caught.value)) < 400


def test_paths_follow_the_api() -> None:
    """Core group, named groups, cluster scope, subresources; a wrong scope is our own mistake."""
    assert "/api/v1/namespaces/n/pods/a" == POD.path("n", "a")
    assert "/api/v1/pods" == POD.path(None)
    assert "/api/v1/nodes/x" == NODE.path(None, "x")
    assert "/apis/mindxdl.gitee.com/v1/namespaces/n/ascendjobs/j/status" == ASCENDJOB.path("n", "j", "status")
    assert "/apis/scheduling.volcano.sh/v1beta1/podgroups" == POD_GROUP.path(None)
    assert "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/a.b" == CRD.path(None, "a.b")
    with pytest.raises(ValueError, match="has no namespace"):
        NODE.path("n", "x")
    with pytest.raises(ValueError, match="needs a namespace"):
        SERVICE.path(None, "s")
    with pytest.raises(ValueError, match="is empty"):
        POD.path("n", "")


# ------------------------------------------------------------------------------------------ configuration


def kubeconfig(server: str, *, cluster: Any = None, user: Any = None, context: str = "here") -> str:
    import yaml

    return str(
        yaml.safe_dump(
            {
                "current-context": context,
                "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
                "users": [{"name": "u", "user": user or {}}],
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "mine"}}],
            }
        )
    )


@pytest.mark.parametrize("inline", [True, False])
async def test_certificates_of_both_sides_are_used(tmp_path: Path, inline: bool) -> None:
    """The server's is checked against the CA, ours is shown; as files or inside the kubeconfig."""
    import base64

    ca = trustme.CA()
    serving, mine = ca.issue_cert("127.0.0.1"), ca.issue_cert("someone@example.org")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.configure_cert(context)
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    peers: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peercert"))
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    parts = {
        "certificate-authority": ca.cert_pem.bytes(),
        "client-certificate": mine.cert_chain_pems[0].bytes(),
        "client-key": mine.private_key_pem.bytes(),
    }
    given: dict[str, str] = {}
    for key, pem in parts.items():
        (tmp_path / key).write_bytes(pem)
        given |= {f"{key}-data": base64.b64encode(pem).decode()} if inline else {key: key}
    cluster = {key: value for key, value in given.items() if key.startswith("certificate")}
    user = {key: value for key, value in given.items() if key.startswith("client")}
    file = tmp_path / "config"
    try:
        file.write_text(kubeconfig(url, cluster=cluster, user=user))
        async with KubeClient(load_config(file)) as client:
            await client.list(POD, "default")
        file.write_text(kubeconfig(url, user=user))
        async with KubeClient(load_config(file)) as client:
            with pytest.raises(ApiUnreachable, match=r"(?i)certificate"):
                await client.list(POD, "default")
        file.write_text(kubeconfig(url, cluster={"insecure-skip-tls-verify": True}, user=user))
        async with KubeClient(load_config(file)) as client:
            await client.list(POD, "default")
    finally:
        await runner.cleanup()

    assert 2 == len(peers)
    assert all(("email", "someone@example.org") in peer["subjectAltName"] for peer in peers)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a mapping"),
        ("a: [", "cannot be read"),
        ("clusters: []", "no current-context"),
        (kubeconfig("https://x", context="there"), "no context 'there'"),
        (kubeconfig("x:6443"), "not a URL"),
        (kubeconfig("https://x", cluster={"certificate-authority-data": "%%%"}), "not base64"),
        (kubeconfig("https://x", cluster={"certificate-authority": "/nowhere"}), "no such file"),
        (kubeconfig("https://x", user={"auth-provider": {"name": "gcp"}}), "removed from Kubernetes"),
        (kubeconfig("https://x", user={"exec": {"args": []}}), "names no command"),
    ],
)
def test_a_bad_kubeconfig_says_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    """Each mistake has its sentence."""
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_config(file)


def test_the_sources_of_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$KUBECONFIG before the service account, that before the home directory; none is an error."""
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("t")
    (account / "namespace").write_text("ours\n")
    trustme.CA().cert_pem.write_to_path(str(account / "ca.crt"))
    monkeypatch.setattr("taskd.kube.config.SERVICE_ACCOUNT", account)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="no cluster is configured"):
        load_config()

    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text(kubeconfig("https://home"))
    assert ("https://home", "mine") == (load_config().server, load_config().namespace)

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert ("https://[fd00::1]:6443", "ours") == (load_config().server, load_config().namespace)

    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(kubeconfig("https://first"))
    second.write_text(kubeconfig("https://second"))
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")
    assert "https://first" == load_config().server

    assert "secret" not in repr(ClusterConfig("https://x", token="secret"))  # noqa: S106
