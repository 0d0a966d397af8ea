"""Where the API server is and who we are.

Sources, first one that is there: what was given explicitly, ``$KUBECONFIG`` (a list of files, the first
definition of a name wins, as kubectl does it), the service account of the pod, ``~/.kube/config``.

Certificates that a kubeconfig carries inline have to be files for a moment, because the TLS library reads
only files; they are written with mode 0600 into a directory of their own and removed at once.
"""

import base64
import binascii
import contextlib
import hashlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from taskd.kube.errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that prints a token (``users[].user.exec``)."""

    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    api_version: str


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Everything that is needed to talk to one API server as one user."""

    server: str
    namespace: str = "default"
    ca_file: str | None = None
    ca_data: bytes | None = field(default=None, repr=False)
    insecure_skip_verify: bool = False
    tls_server_name: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    cert_file: str | None = None
    cert_data: bytes | None = field(default=None, repr=False)
    key_file: str | None = None
    key_data: bytes | None = field(default=None, repr=False)
    exec_plugin: ExecPlugin | None = None

    def __post_init__(self) -> None:
        if not self.server.startswith(("https://", "http://")):
            raise ConfigError(f"the server {self.server!r} is not a URL; give https://HOST:PORT")
        for path in (self.ca_file, self.cert_file, self.key_file):
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"{path} is named in the configuration, but there is no such file")

    def fingerprint(self) -> str:
        """Return a short mark that tells this cluster from others: its address and who vouches for it."""
        authority = self.ca_data or b""
        if self.ca_file:
            with contextlib.suppress(OSError):
                authority = Path(self.ca_file).read_bytes()
        return hashlib.sha256(self.server.encode() + b"\0" + authority).hexdigest()[:16]

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return how to check the server and how to show ourselves; None for plain HTTP."""
        if self.server.startswith("http://"):
            return None
        try:
            context = ssl.create_default_context(
                cafile=self.ca_file,
                cadata=self.ca_data.decode() if self.ca_data and not self.ca_file else None,
            )
            if self.insecure_skip_verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            with (
                _as_file(self.cert_file, self.cert_data) as cert,
                _as_file(self.key_file, self.key_data) as key,
            ):
                if cert:
                    context.load_cert_chain(cert, key)
        except (ssl.SSLError, OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the certificates for {self.server} cannot be used: {error}") from error
        return context


@contextlib.contextmanager
def _as_file(path: str | None, data: bytes | None) -> Iterator[str | None]:
    if path or not data:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="taskd-") as folder:
        file = Path(folder) / "pem"
        file.touch(mode=0o600)
        file.write_bytes(data)
        yield str(file)


def load_config(
    kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None
) -> ClusterConfig:
    """Find the configuration; a given file is the only one looked at.

    Raises ConfigError with what was looked for, if there is none.
    """
    if kubeconfig is not None:
        return _from_files([Path(kubeconfig).expanduser()], context)
    if named := os.environ.get("KUBECONFIG"):
        return _from_files([Path(p).expanduser() for p in named.split(os.pathsep) if p], context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").is_file():
        return in_cluster()
    default = Path("~/.kube/config").expanduser()
    if default.is_file():
        return _from_files([default], context)
    raise ConfigError(
        "no cluster is configured: $KUBECONFIG is not set, this is no pod with a service account, "
        "and ~/.kube/config does not exist"
    )


def in_cluster() -> ClusterConfig:
    """Return the configuration of a pod; its token is read again from the file as it is rotated."""
    account = SERVICE_ACCOUNT
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("KUBERNETES_SERVICE_HOST is not set: this is not a pod")
    token = account / "token"
    if not token.is_file():
        raise ConfigError(f"{token} does not exist: the pod has no service account token mounted")
    with contextlib.suppress(OSError):
        namespace = (account / "namespace").read_text().strip()
        return ClusterConfig(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            namespace=namespace or "default",
            ca_file=str(account / "ca.crt"),
            token_file=str(token),
        )
    raise ConfigError(f"{account / 'namespace'} cannot be read")


def _from_files(paths: list[Path], context: str | None) -> ClusterConfig:
    current, found = context, dict[str, dict[str, tuple[Mapping[str, Any], Path]]]()
    for path in paths:
        if not path.is_file():
            if len(paths) == 1:
                raise ConfigError(f"the kubeconfig {path} does not exist")
            continue
        try:
            document = yaml.safe_load(path.read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"the kubeconfig {path} cannot be read: {error}") from error
        if not isinstance(document, dict):
            raise ConfigError(f"the kubeconfig {path} is not a mapping")
        current = current or document.get("current-context")
        for section, inner in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
            for entry in document.get(section) or ():
                if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                    raise ConfigError(f"an entry of {section} in {path} has no name")
                value = entry.get(inner) or {}
                if not isinstance(value, dict):
                    raise ConfigError(f"{section} {entry['name']!r} in {path} is not a mapping")
                found.setdefault(section, {}).setdefault(entry["name"], (value, path))
    where = ", ".join(map(str, paths))
    if not current:
        raise ConfigError(f"no current-context in {where}; name a context")

    def pick(section: str, name: str) -> tuple[Mapping[str, Any], Path]:
        try:
            return found[section][name]
        except KeyError:
            raise ConfigError(f"there is no {section[:-1]} {name!r} in {where}") from None

    chosen, _ = pick("contexts", current)
    cluster, cluster_path = pick("clusters", str(chosen.get("cluster", "")))
    user, user_path = pick("users", str(chosen["user"])) if chosen.get("user") else ({}, cluster_path)
    return _build(cluster, cluster_path.parent, user, user_path.parent, chosen.get("namespace") or "default")


def _build(
    cluster: Mapping[str, Any], cluster_dir: Path, user: Mapping[str, Any], user_dir: Path, namespace: str
) -> ClusterConfig:
    def file(source: Mapping[str, Any], folder: Path, key: str) -> str | None:
        value = source.get(key)
        return str(folder / str(value)) if value else None

    def data(source: Mapping[str, Any], key: str) -> bytes | None:
        value = source.get(key)
        if not value:
            return None
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise ConfigError(f"{key} is not base64: {error}") from error

    if user.get("auth-provider"):
        raise ConfigError("auth-provider was removed from Kubernetes in 1.26; use exec or a token")
    plugin = user.get("exec")
    ca_data, cert_data = data(cluster, "certificate-authority-data"), data(user, "client-certificate-data")
    key_data = data(user, "client-key-data")
    return ClusterConfig(
        server=str(cluster.get("server", "")).rstrip("/"),
        namespace=namespace,
        ca_file=None
        if cluster.get("certificate-authority-data")
        else file(cluster, cluster_dir, "certificate-authority"),
        ca_data=ca_data,
        insecure_skip_verify=bool(cluster.get("insecure-skip-tls-verify")),
        tls_server_name=cluster.get("tls-server-name"),
        token=user.get("token"),
        token_file=file(user, user_dir, "tokenFile"),
        username=user.get("username"),
        password=user.get("password"),
        cert_file=None if cert_data else file(user, user_dir, "client-certificate"),
        cert_data=cert_data,
        key_file=None if key_data else file(user, user_dir, "client-key"),
        key_data=key_data,
        exec_plugin=_plugin(plugin) if plugin else None,
    )


def _plugin(raw: Mapping[str, Any]) -> ExecPlugin:
    command = raw.get("command")
    if not isinstance(command, str) or not command:
        raise ConfigError("the user's exec section names no command")
    return ExecPlugin(
        command=command,
        args=tuple(str(arg) for arg in raw.get("args") or ()),
        env={str(e["name"]): str(e["value"]) for e in raw.get("env") or ()},
        api_version=str(raw.get("apiVersion", "client.authentication.k8s.io/v1")),
    )
