"""Container images without a registry and without a builder: archives that a few lines of Python write.

The sandbox of every pod is one static program that waits. The image for training has no files to speak of:
its pods mount this machine's system, interpreter and environment read-only (see `training`), so there is
nothing to build, nothing to copy, and a changed source file is in the next pod.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PAUSE: Final = "taskd.test/pause:1"
HOST: Final = "taskd.test/host:1"

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}

# What a program that asks for users or hosts finds; kubelet mounts resolv.conf, hosts and hostname itself.
_ETC: Final = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True)
class Image:
    """What is in an image of one layer."""

    name: str
    directories: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    programs: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()

    def archive(self, path: Path) -> None:
        """Write it as ``docker save`` does, for ``ctr images import``."""
        layer = _tar(self._fill)
        digest = hashlib.sha256(layer).hexdigest()
        config = json.dumps(
            {
                "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
                "os": "linux",
                "config": {
                    "Entrypoint": [*self.entrypoint],
                    "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                    "WorkingDir": "/",
                },
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
        ).encode()
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        manifest = [{"Config": config_name, "RepoTags": [self.name], "Layers": [f"{digest}/layer.tar"]}]

        def fill(tar: tarfile.TarFile) -> None:
            _add(tar, config_name, config)
            _add(tar, f"{digest}/layer.tar", layer)
            _add(tar, "manifest.json", json.dumps(manifest).encode())

        path.write_bytes(_tar(fill))

    def _fill(self, tar: tarfile.TarFile) -> None:
        for name in self.directories:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name, target in self.links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name, content in self.files.items():
            _add(tar, name, content)
        for name, content in self.programs.items():
            _add(tar, name, content, mode=0o755)


def pause(program: Path) -> Image:
    """The sandbox of pods."""
    return Image(PAUSE, programs={"pause": program.read_bytes()}, entrypoint=("/pause",))


def host() -> Image:
    """Empty places for this machine's files, and its links between them (/bin to usr/bin, as a rule)."""
    top = [Path("/") / name for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")]
    links = {path.name: str(path.readlink()) for path in top if path.is_symlink()}
    directories = ("dev", "etc", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var")
    return Image(
        HOST,
        directories=directories,
        files={f"etc/{name}": text.encode() for name, text in _ETC.items()},
        links=links,
    )


def _tar(fill: Callable[[tarfile.TarFile], None]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        fill(tar)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
