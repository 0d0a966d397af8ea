"""The fields that we read, and no others.

A controller of 5,000 pods decodes every one of them at each change. Of some 4 KB of JSON it looks at a dozen
fields, so these structs name a dozen and the decoder skips the rest without building it. They hold no
reference cycles, hence ``gc=False``: the collector never walks the cache.

An AscendJob is a plain dictionary, because its pod template is whatever the user wrote.
"""

import sys
from typing import Any, Protocol

import msgspec

Json = dict[str, Any]


class _View(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel", omit_defaults=True):
    pass


class OwnerReference(_View, frozen=True):
    """Who owns the object; deletion follows it."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(_View, frozen=True):
    """What every object has."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def controller_uid(self) -> str:
        """UID of the owner that manages the object, or an empty string."""
        for owner in self.owner_references:
            if owner.controller:
                return owner.uid
        return ""

    @property
    def is_terminating(self) -> bool:
        """Somebody asked for its deletion."""
        return self.deletion_timestamp is not None


class Condition(_View, frozen=True):
    """One entry of a list of conditions."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class StateWaiting(_View, frozen=True):
    """A container that has not started."""

    reason: str = ""
    message: str = ""


class StateRunning(_View, frozen=True):
    """A container that runs."""

    started_at: str | None = None


class StateTerminated(_View, frozen=True):
    """A container that ended."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(_View, frozen=True):
    """At most one of the three is set."""

    waiting: StateWaiting | None = None
    running: StateRunning | None = None
    terminated: StateTerminated | None = None


_NO_STATE = ContainerState()


class ContainerStatus(_View, frozen=True):
    """One container of a pod."""

    name: str = ""
    ready: bool = False
    restart_count: int = 0
    container_id: str = msgspec.field(default="", name="containerID")
    state: ContainerState = _NO_STATE
    last_state: ContainerState = _NO_STATE


class PodSpec(_View, frozen=True):
    """Where the pod is."""

    node_name: str = ""


class PodStatus(_View, frozen=True):
    """How the pod is."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    host_ip: str = msgspec.field(default="", name="hostIP")
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


_NO_META = ObjectMeta()
_NO_POD_SPEC = PodSpec()
_NO_POD_STATUS = PodStatus()


class Pod(_View, frozen=True):
    """A pod."""

    metadata: ObjectMeta = _NO_META
    spec: PodSpec = _NO_POD_SPEC
    status: PodStatus = _NO_POD_STATUS


class ServicePort(_View, frozen=True):
    """One port of a Service."""

    name: str = ""
    port: int = 0
    target_port: int | str | None = None
    protocol: str = "TCP"


class ServiceSpec(_View, frozen=True):
    """Address and selection."""

    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    ports: tuple[ServicePort, ...] = ()
    selector: dict[str, str] = {}


_NO_SERVICE_SPEC = ServiceSpec()


class Service(_View, frozen=True):
    """A Service."""

    metadata: ObjectMeta = _NO_META
    spec: ServiceSpec = _NO_SERVICE_SPEC


class PodGroupStatus(_View, frozen=True):
    """What Volcano says of the gang."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    running: int = 0
    succeeded: int = 0
    failed: int = 0


_NO_GROUP_STATUS = PodGroupStatus()


class PodGroup(_View, frozen=True):
    """A gang of pods; its spec is compared as it is, so it stays raw."""

    metadata: ObjectMeta = _NO_META
    spec: Json = {}
    status: PodGroupStatus = _NO_GROUP_STATUS


class Taint(_View, frozen=True):
    """Why a node takes no pods, or loses them."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(_View, frozen=True):
    """What keeps pods off the node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(_View, frozen=True):
    """One of a node's addresses."""

    type: str = ""
    address: str = ""


class NodeStatus(_View, frozen=True):
    """What the kubelet says."""

    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}


_NO_NODE_SPEC = NodeSpec()
_NO_NODE_STATUS = NodeStatus()


class Node(_View, frozen=True):
    """A node."""

    metadata: ObjectMeta = _NO_META
    spec: NodeSpec = _NO_NODE_SPEC
    status: NodeStatus = _NO_NODE_STATUS

    @property
    def is_ready(self) -> bool:
        """The kubelet reports, and says that it can run pods."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)


class ConfigMap(_View, frozen=True):
    """A ConfigMap with text data."""

    metadata: ObjectMeta = _NO_META
    data: dict[str, str] = {}


class PartialObject(_View, frozen=True):
    """Any object, of which only the metadata is read."""

    metadata: ObjectMeta = _NO_META


class HasMeta(Protocol):
    """Every view above."""

    @property
    def metadata(self) -> ObjectMeta: ...  # noqa: D102 - see ObjectMeta


class Identity(msgspec.Struct, frozen=True, gc=False):
    """What a cache needs to know of an object, be it a view or a dictionary."""

    namespace: str
    name: str
    uid: str
    version: int  # resourceVersion as a number: the API promises an order since 1.35 and has kept one always
    owner: str

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name


def version_number(text: str) -> int:
    """Return a resourceVersion as a number; -1 for what is none (aggregated APIs may do as they like)."""
    return int(text) if text.isdecimal() else -1


def resource_version(obj: HasMeta | Json) -> str:
    """Return the version of a view or of a raw dictionary, as sent."""
    if isinstance(obj, dict):
        return str((obj.get("metadata") or {}).get("resourceVersion") or "")
    return obj.metadata.resource_version


def identity(obj: HasMeta | Json) -> Identity:
    """Return name, UID, version and controlling owner of a view or of a raw dictionary.

    Namespaces and owners are the same few strings on thousands of objects; interning them makes the keys of
    the indexes compare by address.
    """
    if isinstance(obj, dict):
        meta = obj.get("metadata") or {}
        owner = next((o.get("uid", "") for o in meta.get("ownerReferences") or () if o.get("controller")), "")
        return Identity(
            sys.intern(meta.get("namespace") or ""),
            meta.get("name") or "",
            meta.get("uid") or "",
            version_number(meta.get("resourceVersion") or ""),
            sys.intern(owner),
        )
    view = obj.metadata
    return Identity(
        sys.intern(view.namespace),
        view.name,
        view.uid,
        version_number(view.resource_version),
        sys.intern(view.controller_uid),
    )
