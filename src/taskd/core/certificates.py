"""When certificates are made, renewed, exchanged and let go: the rules of the controller's authority.

An authority that changes from one day to the next would lock out everybody who has not heard of it yet. So
the next one is made and shown to all long before it signs (`PREPARE`), signs when all have had time to learn
of it (`PROMOTE`), and the old one stays in the bundle until it ends. No certificate outlives the authority
that signed it, so whatever is valid by its own dates is valid by the bundle too.

Each step is one write of one Secret. Whoever dies between two of them leaves a state from which the same
rules go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

DAY_S: Final = 86_400.0
AUTHORITY_S: Final = 5 * 365 * DAY_S
LEAF_S: Final = 30 * DAY_S
ROTATE_S: Final = 180 * DAY_S
"""How long before its end an authority is given a successor."""
SPREAD_S: Final = 7 * DAY_S
"""How long a successor is shown before it signs: Secrets reach pods within minutes, where kubelets live."""
BACKDATE_S: Final = 300.0
"""Clocks of nodes differ: a certificate is valid a little before it was made."""
RENEW_PART: Final = 2 / 3
"""The part of its life after which a certificate is renewed; the rest is for what may go wrong with that."""

OPERATOR: Final = "taskd-operator"
"""A certificate with this name may speak for every job. No job can have it: jobs have their UIDs as names."""
VARIABLE: Final = "TASKD_CERTIFICATES"
"""In a pod: the directory with the job's certificates, for all that the job's parts say to each other."""
CA, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"


@dataclass(frozen=True, slots=True)
class Certificate:
    """What there is to know of a certificate: whose it is, who signed it, and for how long."""

    mark: str
    """Its fingerprint."""
    key: str
    """The mark of its own key."""
    signed_by: str
    """The mark of the key that signed it."""
    names: tuple[str, ...] = ()
    begins: float = 0.0
    ends: float = 0.0
    authority: bool = False

    def renew_at(self) -> float:
        """The time from which it should be renewed."""
        return self.begins + (self.ends - self.begins) * RENEW_PART


@dataclass(frozen=True, slots=True)
class Authority:
    """What is kept of an authority."""

    signer: Certificate | None
    bundle: tuple[Certificate, ...] = ()
    successor: Certificate | None = None
    ours: bool = True
    """False for one that somebody else brought: it is used, and never changed."""


class Step(StrEnum):
    """What is to be done with the authority."""

    KEEP = "keep"
    FOUND = "found"
    """Make the first one; nothing that an older one signed is worth anything."""
    PREPARE = "prepare"
    """Make a successor and show it to all; the old one signs on."""
    PROMOTE = "promote"
    """Let the successor sign; the old one stays in the bundle."""
    TRIM = "trim"
    """Take those that have ended out of the bundle."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A step and the sentence that explains it."""

    step: Step
    reason: str = ""


class AuthorityUnusable(ValueError):
    """An authority cannot sign, and is not ours to replace; the text says why."""


def judge(kept: Authority | None, now: float) -> Verdict:
    """The next step for the authority; AuthorityUnusable where nothing may be changed and nothing signed."""
    if kept is None:
        return Verdict(Step.FOUND, "there is no authority yet")
    signer, successor = kept.signer, kept.successor
    flaw = _flaw(signer, now)
    if flaw and not kept.ours:
        raise AuthorityUnusable(flaw)
    if signer is not None and now < signer.begins:
        # A clock that was set back must not cost all jobs their certificates.
        raise AuthorityUnusable("it is not valid yet, by this machine's clock")
    if flaw or signer is None:
        step = Step.FOUND if _flaw(successor, now) else Step.PROMOTE
        return Verdict(step, flaw)
    if not kept.ours:
        return Verdict(Step.KEEP)
    if successor is not None and now >= min(_made(successor) + SPREAD_S, signer.ends - LEAF_S):
        return Verdict(Step.PROMOTE, "the successor has been shown long enough")
    if successor is None and now >= signer.ends - ROTATE_S:
        return Verdict(Step.PREPARE, "the authority ends soon")
    if any(each.ends <= now for each in kept.bundle):
        return Verdict(Step.TRIM, "an authority in the bundle has ended")
    return Verdict(Step.KEEP)


def trusted(kept: Authority, now: float) -> tuple[Certificate, ...]:
    """The authorities that belong in the bundle: all that have not ended, each once."""
    known = {each.mark: each for each in (kept.signer, kept.successor, *kept.bundle) if each is not None}
    return tuple(each for each in known.values() if each.ends > now)


def leaf_life(signer: Certificate, now: float, lasts_s: float = LEAF_S) -> tuple[float, float]:
    """From when until when a certificate holds that is signed now."""
    return max(now - BACKDATE_S, signer.begins), min(now + lasts_s, signer.ends)


def leaf_flaw(
    leaf: Certificate | None, names: tuple[str, ...], bundle: tuple[Certificate, ...], now: float
) -> str:
    """Why this certificate has to be made anew; empty where it need not be.

    One that an older authority signed is good for as long as that authority is in the bundle.
    """
    if leaf is None:
        return "there is none"
    if set(leaf.names) != set(names):
        return f"it is for {', '.join(leaf.names) or 'nobody'}, not for {', '.join(names)}"
    if leaf.signed_by not in {each.key for each in bundle}:
        return "the authority that signed it is not trusted any more"
    if now >= leaf.renew_at():
        return "it ends soon"
    if now < leaf.begins:
        return "it is not valid yet"
    return ""


def plane_names(service: str, address: str = "", more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Every name and address under which pods reach the plane; `service` is `namespace/name`.

    The loopback ones are for a program in the pod that passes connections on.
    """
    namespace, _, name = service.partition("/")
    services = ((name, namespace), ("clusterd-grpc-svc", "mindx-dl"))
    spelled = (
        f"{host}.{home}{ending}"
        for host, home in services
        for ending in ("", ".svc", ".svc.cluster.local")
        if host and home
    )
    own = (address,) if address and address != "None" else ()
    return tuple(dict.fromkeys((*spelled, *own, "localhost", "127.0.0.1", *more)))


def _flaw(signer: Certificate | None, now: float) -> str:
    if signer is None:
        return "its certificate and its key cannot be read, or do not belong together"
    if not signer.authority:
        return "its certificate may not sign others"
    if now >= signer.ends:
        return "it has ended"
    return ""


def _made(certificate: Certificate) -> float:
    return certificate.begins + BACKDATE_S
