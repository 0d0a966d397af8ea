"""The certificates of jobs: one Secret each, made before the pods, renewed while the job runs.

Which Secrets are up to date is remembered only to ask less: a controller that begins looks at each once. A
Secret of that name that is not ours is left alone; whoever made it wants it so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import structlog

from taskd.core.acjob import names
from taskd.core.acjob.job import Job
from taskd.core.acjob.jobsecret import identity, job_secret, secret_name, wants_certificates
from taskd.core.acjob.seen import Failure
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError, KubeError, NotLeader
from taskd.kube.objects import Json, ObjectMeta
from taskd.operator.authority import MANAGED_BY, AuthorityKeeper, Kept, NoAuthority
from taskd.operator.owners import is_predecessors

TRIES = 3
log = structlog.get_logger()


class _NotYetGone(Exception):
    """The Secret is there, but not for long."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Until when a job's Secret needs no look, as long as this bundle is shown."""

    renew_at: float
    bundle: str


@dataclass(slots=True)
class JobCertificates:
    """Makes and renews the Secrets of jobs."""

    client: KubeClient
    keeper: AuthorityKeeper
    _known: dict[str, _Known] = field(default_factory=dict)

    def is_due(self, uid: str) -> bool:
        """Whether the Secret of a job that had one has to be looked at again."""
        known = self._known.get(uid)
        if known is None:
            return False
        try:
            bundle = _mark(self.keeper.kept())
        except NoAuthority:
            return False
        return self.keeper.clock() >= known.renew_at or known.bundle != bundle

    def due(self) -> Iterator[str]:
        """The UIDs of all jobs of which that is so."""
        return (uid for uid in [*self._known] if self.is_due(uid))

    def forget(self, alive: set[str]) -> None:
        """Keep what is known of these jobs only."""
        for uid in self._known.keys() - alive:
            del self._known[uid]

    async def sync(self, job: Job) -> Failure | None:
        """Have a good Secret for the job, where it wants one; returns what was refused."""
        if not wants_certificates(job):
            return None
        try:
            for _ in range(TRIES):
                try:
                    await self._sync(job)
                except ApiError as error:
                    if not (error.is_conflict or error.already_exists):
                        raise
                else:
                    return None
        except NotLeader:
            raise
        except _NotYetGone as error:
            return Failure(names.SYNC_CONFIG_MAP_FAILED, str(error))  # an Event will do: it goes in a moment
        except NoAuthority as error:
            return Failure(names.SYNC_CERTIFICATES_FAILED, str(error))
        except KubeError as error:
            said = error.message if isinstance(error, ApiError) else str(error)
            log.warning("write_refused", reason=names.SYNC_CERTIFICATES_FAILED, error=str(error))
            return Failure(names.SYNC_CERTIFICATES_FAILED, f"the Secret {secret_name(job)}: {said}")
        return Failure(names.SYNC_CERTIFICATES_FAILED, f"the Secret {secret_name(job)} is not to be had yet")

    async def _sync(self, job: Job) -> None:
        bundle = _mark(self.keeper.kept())
        leaf = await self.keeper.bring(
            job.namespace,
            secret_name(job),
            identity(job),
            manifest=lambda data: job_secret(job, MANAGED_BY, data),
            ours=lambda found: _is_of(job, found),
        )
        if leaf is not None:
            self._known[job.uid] = _Known(leaf.renew_at(), bundle)
        else:
            self._known.pop(job.uid, None)  # somebody else's: it is used as it is


def _is_of(job: Job, found: Json) -> bool:
    metadata = msgspec.convert(found["metadata"], ObjectMeta)
    if is_predecessors(metadata, job):
        raise _NotYetGone(f"the Secret {secret_name(job)} of an earlier job of this name has not gone yet")
    return metadata.controller_uid == job.uid


def _mark(kept: Kept) -> str:
    return hashlib.sha256(kept.bundle_pem).hexdigest()
