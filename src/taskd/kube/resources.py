"""The kinds that TaskD reads or writes, and where they live in the API.

A resource also carries the type into which its objects are decoded, so that ``client.get(POD, …)`` is a Pod
for the type checker too. ``POD.decoded(Json)`` is the same resource with whole objects as dictionaries.
"""

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

from taskd.kube.objects import ConfigMap, Json, Node, PartialObject, Pod, PodGroup, Service

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """One kind at one version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    model: type[T]

    @property
    def api_version(self) -> str:
        """The value of an object's ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def decoded(self, model: type[U]) -> "Resource[U]":
        """Return the same resource whose objects are read into another type."""
        return cast("Resource[U]", replace(self, model=cast("Any", model)))

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of a collection, an object or a part of it."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if namespace:
            if not self.namespaced:
                raise ValueError(f"{self.kind} has no namespace, but {namespace!r} was given")
            base += f"/namespaces/{quote(namespace, safe='')}"
        elif self.namespaced and name is not None:
            raise ValueError(f"{self.kind} {name!r} needs a namespace")
        base += f"/{self.plural}"
        if name is not None:
            if not name:
                raise ValueError(f"the name of a {self.kind} is empty")
            base += f"/{quote(name, safe='')}"
        return f"{base}/{subresource}" if subresource else base


# dict[str, Any] is not a class for isinstance, but it is what the decoder takes.
_RAW = cast("type[Json]", dict[str, Any])

POD: Resource[Pod] = Resource("", "v1", "pods", "Pod", namespaced=True, model=Pod)
SERVICE: Resource[Service] = Resource("", "v1", "services", "Service", namespaced=True, model=Service)
CONFIG_MAP: Resource[ConfigMap] = Resource(
    "", "v1", "configmaps", "ConfigMap", namespaced=True, model=ConfigMap
)
EVENT: Resource[Json] = Resource("", "v1", "events", "Event", namespaced=True, model=_RAW)
NODE: Resource[Node] = Resource("", "v1", "nodes", "Node", namespaced=False, model=Node)
NAMESPACE: Resource[PartialObject] = Resource(
    "", "v1", "namespaces", "Namespace", namespaced=False, model=PartialObject
)
SECRET: Resource[Json] = Resource("", "v1", "secrets", "Secret", namespaced=True, model=_RAW)
LEASE: Resource[Json] = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True, model=_RAW)
ASCENDJOB: Resource[Json] = Resource(
    "mindxdl.gitee.com", "v1", "ascendjobs", "AscendJob", namespaced=True, model=_RAW
)
POD_GROUP: Resource[PodGroup] = Resource(
    "scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", namespaced=True, model=PodGroup
)
QUEUE: Resource[Json] = Resource(
    "scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False, model=_RAW
)
DEPLOYMENT: Resource[Json] = Resource("apps", "v1", "deployments", "Deployment", namespaced=True, model=_RAW)
STATEFUL_SET: Resource[Json] = Resource(
    "apps", "v1", "statefulsets", "StatefulSet", namespaced=True, model=_RAW
)
CRD: Resource[Json] = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
    model=_RAW,
)
