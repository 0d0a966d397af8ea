"""The Kubernetes API as TaskD uses it: plain dictionaries in, small typed views out.

::

    async with KubeClient(load_config()) as client:
        pod = await client.create(POD, "default", {"metadata": {"name": "a"}, "spec": {...}})
        pods = await client.list(POD, "default", label_selector="job-name=x")
        await client.apply(SERVICE, "default", "x", manifest, field_manager="taskd")
        await client.delete(POD, "default", "a", uid=pod.metadata.uid, grace_period_s=0)

Every write of a client made by :meth:`KubeClient.guarded` asks its guard first, immediately before the bytes
leave. That is how a controller that was paused and lost its lease is kept from writing.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, cast
from urllib.parse import urlencode

import msgspec
import structlog

from taskd.kube.config import ClusterConfig
from taskd.kube.errors import ApiError
from taskd.kube.objects import Json, PartialObject
from taskd.kube.resources import Resource
from taskd.kube.transport import Call, Limits, Transport

T = TypeVar("T")

Manifest = Mapping[str, Any] | msgspec.Struct | bytes
Propagation = Literal["Background", "Foreground", "Orphan"]
EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
Guard = Callable[[], float]

PAGE = 500
WATCH_S = 300
# A bookmark comes at least each 75 s (a minute and a quarter of jitter), so 90 s of silence is a fault.
SILENCE_S = 90.0
APPLY = "application/apply-patch+yaml"  # JSON is YAML
MERGE = "application/merge-patch+json"
# A server that cannot do that answers in full.
BRIEF = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"

_encoder = msgspec.json.Encoder()
log = structlog.get_logger()


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _ListOf(msgspec.Struct, Generic[T]):
    metadata: _ListMeta
    items: list[T] | None = None  # Go writes an empty list of some kinds as null


class _Frame(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _KindOnly(msgspec.Struct):
    kind: str = ""


class _ApiResource(msgspec.Struct):
    name: str


class _ApiResources(msgspec.Struct):
    resources: list[_ApiResource] = []


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(model: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 - any type that can be decoded
    found = _decoders.get(model)
    if found is None:
        found = _decoders[model] = msgspec.json.Decoder(model)
    return found


_frames = msgspec.json.Decoder(_Frame)
_kinds = msgspec.json.Decoder(_KindOnly)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list and the version of the collection that it shows."""

    items: list[T]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Deletion(Generic[T]):
    """What became of a deletion.

    ``gone``: the object does not exist any more. Otherwise ``object`` is its terminating state.
    """

    gone: bool
    object: T | None = None


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One change. A BOOKMARK has no object; it says how far the watch is, in ``bookmark``."""

    type: EventType
    object: T | None
    bookmark: str = ""


class KubeClient:
    """Talks to one API server; see the module's docstring."""

    def __init__(
        self,
        config: ClusterConfig,
        limits: Limits | None = None,
        *,
        observe: Callable[[Call], None] | None = None,
    ) -> None:
        self.config = config
        self._transport = Transport(config, limits, observe=observe)
        self._guard: Guard | None = None
        self._urgent = False

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.__aexit__(kind, error, trace)

    def guarded(self, guard: Guard) -> "KubeClient":
        """Return a client on the same connections whose writes ask ``guard`` right before they are sent.

        The guard raises (see ``Elector.check``) or returns how many seconds the write may take.
        """
        return self._variant(guard=guard, urgent=self._urgent)

    def urgent(self) -> "KubeClient":
        """Return a client whose requests neither queue behind others nor are repeated on 429."""
        return self._variant(guard=None, urgent=True)

    def _variant(self, *, guard: Guard | None, urgent: bool) -> "KubeClient":
        other = object.__new__(KubeClient)
        other.config, other._transport = self.config, self._transport
        other._guard, other._urgent = guard, urgent
        return other

    # ------------------------------------------------------------------------------------------- reading

    async def get(self, resource: Resource[T], namespace: str | None, name: str) -> T:
        """Return one object; ApiError.is_not_found if it is not there."""
        return self._decode(resource, await self._read(resource, resource.path(namespace, name)))

    async def list(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        resource_version: str | None = None,
        page: int = PAGE,
    ) -> Listing[T]:
        """Return all objects, fetched in pages; of all namespaces if none is given.

        Without ``resource_version`` it is the newest state; "0" is whatever the server has at hand, and may
        be older than what this client has seen before. An object that does not fit its view is left out and
        logged: one bad object must not hide all others.
        """
        path = resource.path(namespace)
        decoder = _decoder(_ListOf[resource.model])  # type: ignore[name-defined]
        query: dict[str, str | int | None] = {
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "resourceVersion": resource_version,
            "limit": page or None,
        }
        items: list[T] = []
        while True:
            try:
                body = await self._read(resource, path, query)
            except ApiError as error:
                if not (error.is_gone and query.get("continue")):
                    raise
                # The snapshot that the pages were cut from is gone: take the list in one piece.
                items.clear()
                query |= {"continue": None, "limit": None, "resourceVersion": resource_version}
                continue
            try:
                answer = decoder.decode(body)
            except msgspec.ValidationError:
                answer = _salvage(body, resource)
            items += answer.items or ()
            if not answer.metadata.continue_:
                return Listing(items, answer.metadata.resource_version)
            query |= {"continue": answer.metadata.continue_, "resourceVersion": None}

    async def watch(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_s: int = WATCH_S,
        silence_s: float = SILENCE_S,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Yield changes after ``resource_version`` until the server ends the watch (``timeout_s``).

        Raises ApiError (``is_gone``: list again) and ApiUnreachable, the latter also for a connection that
        was silent for ``silence_s``. Close it (``contextlib.aclosing``) when leaving early.
        """
        query: dict[str, str | int | None] = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "timeoutSeconds": timeout_s,
        }
        target = _target(resource.path(namespace), query)
        objects, partial = _decoder(resource.model), _decoder(PartialObject)
        async with self._transport.stream(target, silence_s=silence_s, label=(resource.plural, "")) as stream:
            rest = b""
            async for chunk in stream.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield _event(line, objects, partial)

    async def serves(self, resource: Resource[Any]) -> bool:
        """Say whether the cluster knows the resource in this version (e.g. whether Volcano is there)."""
        base = resource.path(None).rpartition("/")[0]
        try:
            found = _decoder(_ApiResources).decode(await self._read(resource, base))
        except ApiError as error:
            if error.is_not_found:
                return False
            raise
        return any(entry.name == resource.plural for entry in found.resources)

    # ------------------------------------------------------------------------------------------- writing

    async def create(
        self,
        resource: Resource[T],
        namespace: str | None,
        manifest: Manifest,
        *,
        field_manager: str | None = None,
        brief: bool = False,
    ) -> T:
        """Create an object and return it as stored; ApiError.already_exists if the name is taken.

        With ``brief`` the server answers with the metadata alone, which for a pod costs it a twentieth less;
        everything else in the result has its first value.
        """
        path, body = resource.path(namespace), _body(resource, manifest)
        query, accept = {"fieldManager": field_manager}, BRIEF if brief else ""
        return self._decode(resource, await self._write("POST", resource, path, body, query, accept=accept))

    async def replace(self, resource: Resource[T], namespace: str | None, name: str, manifest: Manifest) -> T:
        """Write the whole object; with a resourceVersion in it, only over exactly that version."""
        path, body = resource.path(namespace, name), _body(resource, manifest)
        return self._decode(resource, await self._write("PUT", resource, path, body))

    async def apply(
        self,
        resource: Resource[T],
        namespace: str | None,
        name: str,
        manifest: Manifest,
        *,
        field_manager: str,
        force: bool = True,
        subresource: str | None = None,
    ) -> T:
        """Server-side apply: the fields named are ours from now on; those we named before and not now go."""
        path = resource.path(namespace, name, subresource)
        query = {"fieldManager": field_manager, "force": "true" if force else "false"}
        if isinstance(manifest, Mapping):
            # The server wants the name in the object too.
            manifest = {**manifest, "metadata": {"name": name, **(manifest.get("metadata") or {})}}
        body = _body(resource, manifest)
        answer = await self._write("PATCH", resource, path, body, query, APPLY, subresource or "")
        return self._decode(resource, answer)

    async def patch(
        self,
        resource: Resource[T],
        namespace: str | None,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> T:
        """Merge patch: null removes a field, a list replaces a list.

        A resourceVersion or UID in the patch's metadata makes it conditional.
        """
        path = resource.path(namespace, name, subresource)
        query = {"fieldManager": field_manager}
        answer = await self._write(
            "PATCH", resource, path, _encoder.encode(patch), query, MERGE, subresource or ""
        )
        return self._decode(resource, answer)

    async def delete(
        self,
        resource: Resource[T],
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_s: int | None = None,
        propagation: Propagation | None = None,
    ) -> Deletion[T]:
        """Delete an object.

        With ``uid`` a namesake that came after it is safe (ApiError.is_conflict). ApiError.is_not_found if it
        is gone already.
        """
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        wanted = {"uid": uid, "resourceVersion": resource_version}
        if conditions := {key: value for key, value in wanted.items() if value is not None}:
            options["preconditions"] = conditions
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        if propagation is not None:
            options["propagationPolicy"] = propagation
        path = resource.path(namespace, name)
        answer = await self._write("DELETE", resource, path, _encoder.encode(options))
        # The server sends a Status once the object is gone, and the object where it is only marked; of a pod
        # it sends the object in both cases.
        if _kinds.decode(answer).kind == "Status":
            return Deletion(gone=True)
        meta = _decoder(PartialObject).decode(answer).metadata
        if not meta.finalizers and not meta.deletion_grace_period_seconds:
            return Deletion(gone=True)
        return Deletion(gone=False, object=self._decode(resource, answer))

    # ----------------------------------------------------------------------------------------- internals

    async def _read(
        self, resource: Resource[Any], path: str, query: Mapping[str, str | int | None] | None = None
    ) -> bytes:
        label = (resource.plural, "")
        target = _target(path, query or {})
        return (await self._transport.request("GET", target, label=label, urgent=self._urgent))[1]

    async def _write(
        self,
        method: str,
        resource: Resource[Any],
        path: str,
        body: bytes,
        query: Mapping[str, str | int | None] | None = None,
        content_type: str = "application/json",
        subresource: str = "",
        accept: str = "",
    ) -> bytes:
        _, answer = await self._transport.request(
            method,
            _target(path, query or {}),
            body,
            content_type,
            label=(resource.plural, subresource),
            accept=accept,
            urgent=self._urgent,
            limit_s=self._guard,
        )
        return answer

    @staticmethod
    def _decode(resource: Resource[T], body: bytes) -> T:
        return cast("T", _decoder(resource.model).decode(body))


def _target(path: str, query: Mapping[str, str | int | None]) -> str:
    given = {key: value for key, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _body(resource: Resource[Any], manifest: Manifest) -> bytes:
    """Encode a manifest; kind and apiVersion are filled in where a dictionary lacks them."""
    if isinstance(manifest, bytes):
        return manifest
    if isinstance(manifest, Mapping) and not ("kind" in manifest and "apiVersion" in manifest):
        manifest = {"apiVersion": resource.api_version, "kind": resource.kind, **manifest}
    return _encoder.encode(manifest)


def _salvage(body: bytes, resource: Resource[Any]) -> _ListOf[Any]:
    """Decode a list object by object, without those that do not fit."""
    raw = _decoder(_ListOf[msgspec.Raw]).decode(body)
    kept = []
    for item in raw.items or ():
        try:
            kept.append(_decoder(resource.model).decode(item))
        except msgspec.ValidationError as error:
            meta = (_decoder(dict).decode(item).get("metadata") or {}) if item else {}
            name = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
            log.warning("object_left_out", resource=resource.plural, name=name, trouble=str(error))
    return _ListOf(raw.metadata, kept)


def _event(
    line: bytes, objects: msgspec.json.Decoder[Any], partial: msgspec.json.Decoder[Any]
) -> WatchEvent[Any]:
    frame = _frames.decode(line)
    if frame.type == "ERROR":
        raise ApiError.from_response(0, bytes(frame.object))
    if frame.type == "BOOKMARK":
        return WatchEvent("BOOKMARK", None, partial.decode(frame.object).metadata.resource_version)
    if frame.type not in {"ADDED", "MODIFIED", "DELETED"}:
        raise ApiError(0, "UnknownEvent", f"the watch sent an event of type {frame.type!r}")
    return WatchEvent(cast("EventType", frame.type), objects.decode(frame.object))
