"""`data-trace-<job>`: which parts of a training are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskd.core.faults.reading import Malformed, as_object, decode, reader, shown
from taskd.core.gojson import compact

KEY: Final = "profilingSwitch"
SWITCHES: Final = ("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader")
VALUES: Final = ("on", "off")


def data_trace(switches: Mapping[str, str]) -> dict[str, str]:
    """The data of the ConfigMap; a switch that is not named is off."""
    return {KEY: compact({name: switches.get(name) or "off" for name in SWITCHES})}


@reader
def read_switches(switches: Mapping[str, object]) -> dict[str, str]:
    """Switches that somebody asks for: names and values must be known, which the reference does not check."""
    found = {}
    for name, value in switches.items():
        if name not in SWITCHES:
            raise Malformed(f"{shown(name)} is no switch; there are {', '.join(SWITCHES)}")
        if value not in ("", *VALUES):
            raise Malformed(f"{name} is {shown(value)}, not on or off")
        found[name] = str(value) or "off"
    return {name: found.get(name, "off") for name in SWITCHES}


@reader
def read_data_trace(data: Mapping[str, str]) -> dict[str, str]:
    """What stands in the ConfigMap; a user may have written it."""
    content = as_object(decode(data.get(KEY) or "{}", KEY), KEY)
    found = read_switches(content)
    if not isinstance(found, dict):
        raise Malformed(found.reason)
    return found
