"""The parts of the ground that need neither root nor a cluster."""

import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from taskd.testing.cluster import images, leftovers, network, prerequisites, training
from taskd.testing.cluster.__main__ import main
from taskd.testing.cluster.layout import FOR_PEOPLE, FOR_TESTS, NUMBERS, Layout
from taskd.testing.cluster.leftovers import Busy, Claim, Identity, State


@dataclass(frozen=True)
class Elsewhere(Layout):
    """A layout whose lock and state are in a directory of the test's."""

    where: Path = Path()

    @property
    def place(self) -> Path:
        return self.where / "place"


def test_clusters_do_not_touch_each_other() -> None:
    """No two numbers share a network, a link, a group or a place; links have names that the kernel takes."""
    layouts = [Layout(number) for number in NUMBERS]
    names = [
        *(layout.bridge for layout in layouts),
        *(node.link for layout in layouts for node in layout.nodes),
    ]
    assert len(names) == len(set(names))
    assert max(map(len, names)) < 16
    assert len(layouts) == len({layout.network for layout in layouts})
    assert len(layouts) == len({layout.place for layout in layouts})
    for layout in layouts:
        subnets = [node.pods for node in layout.nodes]
        assert all(subnet.subnet_of(layout.network) for subnet in subnets)
        assert not any(node.address in subnet for node in layout.nodes for subnet in subnets)
    assert FOR_PEOPLE not in FOR_TESTS
    with pytest.raises(ValueError, match="0 to 7, not 8"):
        Layout(8)


def test_an_image_is_what_docker_would_save(tmp_path: Path) -> None:
    """The manifest names the config and the layer, and the config the layer's digest."""
    image = images.Image(
        "a/b:1", directories=("tmp",), links={"bin": "usr/bin"}, programs={"run": b"#!"}, entrypoint=("/run",)
    )
    image.archive(tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as tar:
        content = {entry.name: (tar.extractfile(entry) or io.BytesIO()).read() for entry in tar}
    (manifest,) = json.loads(content["manifest.json"])
    assert ["a/b:1"] == manifest["RepoTags"]
    config = json.loads(content[manifest["Config"]])
    (layer,) = [content[name] for name in manifest["Layers"]]
    assert [f"sha256:{hashlib.sha256(layer).hexdigest()}"] == config["rootfs"]["diff_ids"]
    assert ["/run"] == config["config"]["Entrypoint"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        found = {entry.name: entry for entry in tar}
    assert 0o1777 == found["tmp"].mode
    assert "usr/bin" == found["bin"].linkname
    assert 0o755 == found["run"].mode


def test_training_pods_see_this_python(tmp_path: Path) -> None:
    """Interpreter, environment and checkout are mounted where they are; only results are writable."""
    parts = training.volumes([tmp_path])
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in parts.mounts}
    assert len(parts.mounts) == len(mounts)
    for needed in (sys.prefix, sys.base_prefix, training.__file__):
        assert any(Path(needed).is_relative_to(place) for place, frozen in mounts.items() if frozen), needed
    writable = [place for place, frozen in mounts.items() if not frozen]
    assert ["/dev/shm", str(tmp_path)] == sorted(writable)
    assert [volume["name"] for volume in parts.volumes] == [mount["name"] for mount in parts.mounts]


def test_a_cluster_has_one_owner(tmp_path: Path) -> None:
    """Whoever comes second is told who has it; when it is given back, nothing of it is left."""
    layout = Elsewhere(3, tmp_path)
    first = Claim(layout)
    with pytest.raises(Busy, match="cluster 3 is being started by somebody else"):
        Claim(layout)
    me = Identity.of(os.getpid())
    assert me is not None
    State(me, leftovers.boot(), str(tmp_path), ready=True).write(layout)
    with pytest.raises(Busy, match=rf"cluster 3 is up, owned by process {me.pid}; `.* down 3` ends it"):
        Claim(layout)
    first.release()
    assert not layout.place.exists()
    Claim(layout).release()


def test_the_state_is_believed_only_if_it_is_of_this_boot(tmp_path: Path) -> None:
    """Process ids of before mean nothing now; neither does a file that was cut off."""
    layout = Elsewhere(3, tmp_path)
    layout.place.mkdir()
    me = Identity.of(os.getpid())
    assert me is not None
    state = State(me, leftovers.boot(), "/nowhere", "config", programs={"kubelet node-1": me})
    state.write(layout)
    assert state == State.read(layout)
    State(me, "another boot", "/nowhere").write(layout)
    assert State.read(layout) is None
    (layout.place / "state.json").write_text('{"owner": {"pid"')
    assert State.read(layout) is None


def test_a_process_id_that_was_used_again_is_nobody() -> None:
    """A process is known by its id and its start."""
    me = Identity.of(os.getpid())
    assert me is not None
    assert me.alive
    assert not Identity(me.pid, me.start + 1).alive


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("root", "nodes need root"),
        ("packages", "nodes need containernetworking-plugins, runc, and there is no apt-get to install them"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    what: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `up`, which changes nothing, and at the end of `make test`."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if what == "root" else 0)
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(prerequisites, "absent_packages", lambda: ["containernetworking-plugins", "runc"])
    monkeypatch.setattr(shutil, "which", lambda *_: None)
    assert 2 == main(["up"])
    assert f"cluster: {words}\n" == capsys.readouterr().err
    assert 0 == main(["shown"])
    assert f"NOT SHOWN: {prerequisites.NOT_SHOWN} ({words})\n" == capsys.readouterr().out


def test_addresses_in_use_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has a route to these addresses keeps it, and says so."""
    routes = '[{"dst": "default", "dev": "eth0"}, {"dst": "10.200.7.0/24", "dev": "vpn0"}]'
    monkeypatch.setattr(network, "_ip", lambda *_: routes)
    assert "cluster 0 needs 10.200.0.0/16, and vpn0 uses 10.200.7.0/24" == network.taken(Layout(0))
    assert network.taken(Layout(1)) is None


@pytest.mark.parametrize("arguments", [[], ["up", "x"], ["hold"], ["down", "1", "2"]])
def test_a_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It says how it is used."""
    assert 2 == main(arguments)
    assert capsys.readouterr().err.startswith("usage: ")


def test_a_number_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """It says which there are."""
    assert 2 == main(["down", "12"])
    assert "cluster: a cluster's number is 0 to 7, not 12\n" == capsys.readouterr().err
