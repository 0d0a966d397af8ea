"""What recovery needs of a backend of collectives, and of the device under it: one module for each.

``find(name)`` gives the one for a name that a script passes to torch ("gloo", "nccl", "hccl").
"""

from taskd.train.torch.devices.protocol import Backend, Damage, Device

__all__ = ["NAMES", "Backend", "Damage", "Device", "find"]

NAMES = ("gloo", "nccl", "hccl")
_found: dict[str, Device] = {}


def find(name: str) -> Device:
    """Return the device protocol of a backend. Nothing of a vendor's is loaded before it is used."""
    if name not in NAMES:
        raise ValueError(f"recovery knows the backends {', '.join(NAMES)}; not {name!r}")
    if name not in _found:
        _found[name] = _make(name)
    return _found[name]


def _make(name: str) -> Device:
    match name:
        case "nccl":
            from taskd.train.torch.devices.nccl import NcclDevice

            return NcclDevice()
        case "hccl":
            from taskd.train.torch.devices.hccl import HcclDevice

            return HcclDevice()
        case _:
            from taskd.train.torch.devices.gloo import GlooDevice

            return GlooDevice()
