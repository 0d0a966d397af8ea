"""The controller's certificate authority: a Secret in its own namespace, and what is signed with it.

The Secret is made by the replica that leads, where there is none. One that somebody else made (cert-manager,
an administrator) is used as it is and never changed. What is to be done with it and when is decided in
`core.certificates`; here it is read and written, one write for each step, and over exactly the version that
was read. It is looked at again every minute, so whatever becomes of it is noticed.

The plane's own certificate is kept in memory only: a new replica makes itself a new one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from taskd.core.certificates import (
    AUTHORITY_S,
    CA,
    CERTIFICATE,
    KEY,
    LEAF_S,
    NEXT_CERTIFICATE,
    NEXT_KEY,
    OPERATOR,
    Authority,
    AuthorityUnusable,
    Certificate,
    Step,
    judge,
    leaf_flaw,
    trusted,
)
from taskd.kit.issuing import (
    Issued,
    UnreadableCertificate,
    issue,
    make_authority,
    read_certificates,
    read_pair,
)
from taskd.kit.papers import Papers, PapersError
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError, KubeError, NotLeader
from taskd.kube.objects import Json
from taskd.kube.resources import SECRET
from taskd.operator.owners import MANAGER

LOOK_S: Final = 60.0
RETRY_S: Final = 2.0
STEPS: Final = 8
CLIENT: Final = "taskd-plane-client"
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "taskd-controller"}
log = structlog.get_logger()


class NoAuthority(Exception):
    """Nothing can be signed; the text says why."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An authority that can sign."""

    facts: Authority
    signer: Issued
    bundle: tuple[Certificate, ...]
    bundle_pem: bytes


@dataclass(slots=True)
class AuthorityKeeper:
    """Keeps the authority, and signs. `run` while leading."""

    client: KubeClient
    namespace: str
    name: str
    clock: Callable[[], float] = time.time
    names: tuple[str, ...] = ()
    """What the plane is reached under."""
    problem: str = "the certificate authority has not been read yet"
    _kept: Kept | None = None
    _server: Papers | None = None
    _server_facts: Certificate | None = None
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, looked: Callable[[], None] = lambda: None) -> None:
        """Look again and again, after somebody has done so once; `looked` is called after each look."""
        while True:
            await asyncio.sleep(RETRY_S if self._kept is None else LOOK_S)
            await self.look()
            await self.bring_operators()
            looked()

    async def ready(self) -> None:
        """Wait until something can be signed."""
        await self._ready.wait()

    async def look(self) -> None:
        """Read the authority and bring it up to date; what stands in the way is told, and is `problem`."""
        try:
            self._take(await self._current())
        except NotLeader:
            raise
        except (KubeError, AuthorityUnusable, NoAuthority) as error:
            words = error.message if isinstance(error, ApiError) else str(error)
            said = f"the Secret {self.namespace}/{self.name} of the certificate authority: {words}"
            if said != self.problem:
                log.warning("no_certificate_authority", why=said)
            self.problem = said
            if isinstance(error, AuthorityUnusable):
                self._kept = None  # what it signs would not hold; what is in use goes on

    # ------------------------------------------------------------------------------------- signing

    def kept(self) -> Kept:
        """The authority; NoAuthority where there is none that can sign."""
        if self._kept is None:
            raise NoAuthority(self.problem)
        return self._kept

    async def bring(
        self,
        namespace: str,
        name: str,
        identity: str,
        *,
        manifest: Callable[[dict[str, str]], dict[str, Any]],
        ours: Callable[[Json], bool],
    ) -> Certificate | None:
        """Have a Secret with a good certificate for this name; None where it is not `ours` to change.

        NoAuthority, or what the API server says, where there can be none; a conflict is worth another try.
        """
        kept = self.kept()
        try:
            found = await self.client.get(SECRET, namespace, name)
        except ApiError as error:
            if not error.is_not_found:
                raise
            data = self._leaf_data(kept, identity)
            found = await self.client.create(SECRET, namespace, manifest(data))
        if not ours(found):
            return None
        patch = self._outdated(found, identity, kept)
        if patch:
            metadata = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
            body = {"metadata": metadata, "data": patch}
            found = await self.client.patch(SECRET, namespace, name, body, field_manager=MANAGER)
        return pair_of(found)

    def _outdated(self, found: Json, identity: str, kept: Kept) -> dict[str, str]:
        """What has to change in a Secret of ours."""
        flaw = leaf_flaw(pair_of(found), (identity,), kept.bundle, self.clock())
        if flaw:
            log.info("certificate_renewed", secret=_place(found), why=flaw)
            return self._leaf_data(kept, identity)
        return {} if decoded(found, CA) == kept.bundle_pem else {CA: encoded(kept.bundle_pem)}

    def _leaf_data(self, kept: Kept, identity: str) -> dict[str, str]:
        made = issue(kept.signer, (identity,), self.clock(), LEAF_S, server=False)
        return {
            CA: encoded(kept.bundle_pem),
            CERTIFICATE: encoded(made.certificate),
            KEY: encoded(made.key),
        }

    async def bring_operators(self) -> None:
        """Have a Secret for people and programs that speak for all jobs: who sends faults, who watches."""
        if self._kept is None:
            return  # that has been told

        def manifest(data: dict[str, str]) -> dict[str, Any]:
            metadata = {"name": CLIENT, "namespace": self.namespace, "labels": dict(MANAGED_BY)}
            return {"metadata": metadata, "type": "kubernetes.io/tls", "data": data}

        try:
            await self.bring(self.namespace, CLIENT, OPERATOR, manifest=manifest, ours=is_managed)
        except NotLeader:
            raise
        except (KubeError, NoAuthority) as error:
            log.warning("no_operators_certificate", secret=f"{self.namespace}/{CLIENT}", why=str(error))

    def call_plane(self, names: tuple[str, ...]) -> None:
        """Say under which names the plane is reached from now on."""
        self.names = names
        if self._kept is not None:
            self._serve(self._kept)

    def server_papers(self) -> Papers:
        """What the plane shows, and whom it trusts, now. Called from gRPC's threads too."""
        papers = self._server
        if papers is None:
            raise PapersError(self.problem)
        return papers

    # ------------------------------------------------------------------------------------- keeping

    def _take(self, kept: Kept) -> None:
        before = self._kept
        if before is None or before.facts != kept.facts:
            signer = kept.facts.signer
            log.info(
                "certificate_authority",
                secret=f"{self.namespace}/{self.name}",
                ours=kept.facts.ours,
                ends=int(signer.ends) if signer else 0,
                trusted=len(kept.bundle),
            )
        self._kept = kept
        self.problem = ""
        self._serve(kept)
        self._ready.set()

    def _serve(self, kept: Kept) -> None:
        """Have a certificate for the plane that is good for a while."""
        now = self.clock()
        flaw = leaf_flaw(self._server_facts, self.names, kept.bundle, now) if self.names else "no names"
        if self.names and flaw:
            issued = issue(kept.signer, self.names, now, LEAF_S, server=True)
            self._server_facts = read_pair(issued.certificate, issued.key)
            self._server = Papers(kept.bundle_pem, issued.certificate, issued.key)
        elif self._server is not None and self._server.ca != kept.bundle_pem:
            self._server = Papers(kept.bundle_pem, self._server.certificate, self._server.key)

    async def _current(self) -> Kept:
        for _ in range(STEPS):
            found = await self._find()
            facts = _facts(found) if found is not None else None
            now = self.clock()
            verdict = judge(facts, now)
            if verdict.step is Step.KEEP and found is not None and facts is not None:
                return _kept(found, facts, now)
            log.info("certificate_authority_step", step=verdict.step, why=verdict.reason)
            try:
                await self._write(verdict.step, found, now)
            except ApiError as error:
                if not (error.is_conflict or error.already_exists):
                    raise
        raise NoAuthority("it changes faster than it can be read")

    async def _find(self) -> Json | None:
        try:
            return await self.client.get(SECRET, self.namespace, self.name)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def _write(self, step: Step, found: Json | None, now: float) -> None:
        old = [pem for known, pem in _bundle(found) if known.ends > now] if found is not None else []
        data: dict[str, str | None] = {}
        if step in {Step.FOUND, Step.PREPARE}:
            made = make_authority(now, AUTHORITY_S)
            first = step is Step.FOUND
            data[CERTIFICATE if first else NEXT_CERTIFICATE] = encoded(made.certificate)
            data[KEY if first else NEXT_KEY] = encoded(made.key)
            old.append(made.certificate)
        elif step is Step.PROMOTE and found is not None:
            data[CERTIFICATE] = found["data"][NEXT_CERTIFICATE]
            data[KEY] = found["data"][NEXT_KEY]
            data[NEXT_CERTIFICATE] = data[NEXT_KEY] = None
        data[CA] = encoded(b"".join(old))
        if found is None:
            manifest = {
                "metadata": {"name": self.name, "namespace": self.namespace, "labels": dict(MANAGED_BY)},
                "type": "kubernetes.io/tls",
                "data": data,
            }
            await self.client.create(SECRET, self.namespace, manifest)
            return
        metadata = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
        patch = {"metadata": metadata, "data": data}
        await self.client.patch(SECRET, self.namespace, self.name, patch, field_manager=MANAGER)


def encoded(pem: bytes) -> str:
    """As a Secret has it."""
    return base64.b64encode(pem).decode()


def decoded(secret: Json, key: str) -> bytes:
    """What a Secret has under that key; nothing where it has none, or nonsense."""
    try:
        return base64.b64decode((secret.get("data") or {}).get(key) or "", validate=True)
    except (binascii.Error, ValueError):
        return b""


def pair_of(secret: Json, certificate: str = CERTIFICATE, key: str = KEY) -> Certificate | None:
    """The certificate in a Secret, where its key is there too and is its own."""
    try:
        return read_pair(decoded(secret, certificate), decoded(secret, key))
    except UnreadableCertificate:
        return None


def _place(secret: Json) -> str:
    metadata = secret["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def is_managed(secret: Json) -> bool:
    """Whether this controller, or one before it, made the Secret."""
    labels: dict[str, Any] = secret["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in MANAGED_BY.items())


def _facts(secret: Json) -> Authority:
    return Authority(
        signer=pair_of(secret),
        bundle=tuple(facts for facts, _ in _bundle(secret)),
        successor=pair_of(secret, NEXT_CERTIFICATE, NEXT_KEY),
        ours=is_managed(secret),
    )


def _bundle(secret: Json) -> list[tuple[Certificate, bytes]]:
    """The authorities that are shown to all, each once; the one that signs is among them in any case."""
    found: dict[str, tuple[Certificate, bytes]] = {}
    for key in (CA, CERTIFICATE):
        try:
            listed = read_certificates(decoded(secret, key))
        except UnreadableCertificate:
            continue
        for facts, pem in listed:
            if facts.authority:
                found.setdefault(facts.mark, (facts, pem))
    return list(found.values())


def _kept(secret: Json, facts: Authority, now: float) -> Kept:
    good = {each.mark for each in trusted(facts, now)}
    bundle = [(known, pem) for known, pem in _bundle(secret) if known.mark in good]
    signer = Issued(decoded(secret, CERTIFICATE), decoded(secret, KEY))
    return Kept(facts, signer, tuple(known for known, _ in bundle), b"".join(pem for _, pem in bundle))
