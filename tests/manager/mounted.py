"""A ConfigMap as a kubelet mounts it: links through a directory that is exchanged as a whole."""

from collections.abc import Mapping
from pathlib import Path


class Mounted:
    """The mount; `publish` is what a kubelet does when the ConfigMap has changed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._number = 0
        place.mkdir(parents=True, exist_ok=True)

    def publish(self, data: Mapping[str, str]) -> None:
        self._number += 1
        inside = self.place / f"..{self._number}"
        inside.mkdir()
        for name, text in data.items():
            (inside / name).write_text(text)
        link = self.place / "..data_tmp"
        link.symlink_to(inside.name)
        link.replace(self.place / "..data")
        for name in data:
            if not (self.place / name).is_symlink():
                (self.place / name).symlink_to(Path("..data") / name)
