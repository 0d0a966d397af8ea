"""What the launcher says to the person at the console: one line each, on stderr."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path


def say(text: str) -> None:
    """Say one line. Standard output belongs to the training."""
    sys.stderr.write(f"taskd: {text}\n")
    sys.stderr.flush()


def slow_imports_notice() -> str:
    """Say that torch has no compiled bytecode and Python may not write it; empty if all is well."""
    if not sys.dont_write_bytecode:
        return ""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    compiled = Path(importlib.util.cache_from_source(spec.origin))
    if compiled.exists():
        return ""
    return (
        "PYTHONDONTWRITEBYTECODE is set and torch has no compiled bytecode, so every process compiles it "
        "anew and imports take four times as long; run: "
        f"{sys.executable} -m compileall -q {Path(spec.origin).parent}"
    )


def drop_missing_preloads(env: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return LD_PRELOAD without the entries that do not exist, and those entries."""
    entries = [entry for entry in env.get("LD_PRELOAD", "").replace(" ", ":").split(":") if entry]
    missing = [entry for entry in entries if "/" in entry and not os.path.exists(entry)]  # noqa: PTH110
    return ":".join(entry for entry in entries if entry not in missing), missing
