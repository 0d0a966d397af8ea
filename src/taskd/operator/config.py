"""What an administrator can set: by flag, by environment, by file, in that order of precedence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from taskd.kube.errors import ConfigError

PREFIX = "TASKD_CONTROLLER_"

Positive = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of `taskd controller`, with the values that hold where nobody says otherwise."""

    kubeconfig: str = ""
    namespace: str = ""
    """Look after the jobs of this namespace only; empty means all."""
    gang: Literal["auto", "on", "off"] = "auto"
    """Gang scheduling by PodGroups: `auto` where the cluster has Volcano's, `on` waits for it."""
    discovery_s: Seconds = 30.0
    """How often to look whether the cluster has got, or lost, Volcano's PodGroup."""
    workers: Positive = 32
    """Jobs looked at side by side: more than connections, since most of them wait for a Service's address."""
    connections: Positive = 16
    leader_elect: bool = True
    lease_namespace: str = "taskd-system"
    lease_name: str = "taskd-controller"
    lease_s: Seconds = 15.0
    identity: str = ""
    """How this replica is called in the Lease; the host's name and a random part where it is empty."""
    listen: str = "0.0.0.0:8080"
    rank_table_dir: str = ""
    """Where rank-table files are written; empty switches that form off."""
    certificates: str = ""
    """The Secret with TLS keys that is mounted into pods, where there is one."""
    plane_service: str = "mindx-dl/clusterd-grpc-svc"
    """Where pods find the control plane: the one below, or a ClusterD."""
    plane: bool = False
    """Serve the control plane too, while leading."""
    plane_listen: str = "0.0.0.0:8899"
    plane_certificates: str = ""
    """A directory with ca.crt, tls.crt and tls.key; callers show certificates of the same authority.

    Without it the controller makes certificates itself, for the plane and for each job.
    """
    plane_names: str = ""
    """More names and addresses, with commas between, under which pods reach the plane."""
    authority: str = "taskd-authority"
    """The Secret of the certificate authority, in the namespace of the lease; made where it is missing."""
    plane_insecure: bool = False
    """Serve without certificates: whoever reaches the port speaks for any job."""
    status_delay_s: Seconds = 0.5
    """How long a change that only counts pods may wait, so that many become one write."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def issues(self) -> bool:
        """Whether this controller makes certificates: where it serves the plane, and nothing else is said."""
        return self.plane and not (self.plane_insecure or self.plane_certificates or self.certificates)


def load(
    flags: Mapping[str, Any], *, path: str = "", environ: Mapping[str, str] | None = None
) -> ControllerConfig:
    """The settings; ConfigError names the setting that cannot be read, and where it came from."""
    environ = os.environ if environ is None else environ
    chosen = _from_file(path or environ.get(f"{PREFIX}CONFIG", ""))
    for name in ControllerConfig.__struct_fields__:
        text = environ.get(PREFIX + name.upper())
        if text is not None:
            chosen[name] = text
            _check({name: text}, f"the variable {PREFIX + name.upper()}")
    given = {name: value for name, value in flags.items() if value is not None}
    for name, value in given.items():
        _check({name: value}, f"the flag --{name.replace('_', '-')}")
    return _check({**chosen, **given}, "the configuration")


def _from_file(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        content = msgspec.yaml.decode(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"the configuration {path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"the configuration {path} is not a map of settings")
    _check(content, f"the configuration {path}")
    return content


def _check(settings: Mapping[str, Any], where: str) -> ControllerConfig:
    try:
        # Strings from the environment stand for numbers and booleans too.
        return msgspec.convert(settings, ControllerConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where} is not valid: {error}") from error
