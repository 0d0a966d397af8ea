#!/usr/bin/env bash
# Make the environments of the tools that `make bench-recovery` compares TaskD with, one each.
#
# usage: tools/peers.sh PYTHON [DIR]          (DIR: out/peers)
#
# All of them use the torch that PYTHON has: a comparison of recovery times must not become one of torch's
# versions and of what lies in the page cache. So their own wish for a torch is not followed (--no-deps), and
# the rest of what they import is named here. Bytecode is compiled now, because a restart is mostly imports.
# One that cannot be installed is left out; the benchmark then says SKIPPED.
set -uo pipefail

python=${1:?usage: tools/peers.sh PYTHON [DIR]}
where=${2:-out/peers}

say() { printf 'peers: %s\n' "$*"; }

site=$("$python" -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("torch").origin).parent.parent)') ||
    { say "'$python' has no torch" >&2; exit 2; }
mkdir -p "$where"

make_one() {
    local name=$1 check=$2 own
    shift 2
    local home="$where/$name" py="$where/$name/bin/python"
    if [ -e "$home/.ready" ]; then say "$name is there"; return; fi
    rm -rf "$home"
    "$python" -m venv "$home" || return 1
    own=$("$py" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\n' "$site" >"$own/_shared_torch.pth"
    local step
    for step in "$@"; do
        # shellcheck disable=SC2086 # a step is a list of words
        "$py" -m pip install --quiet --disable-pip-version-check --ignore-installed $step || return 1
    done
    PYTHONDONTWRITEBYTECODE='' "$py" -m compileall -q -j 0 "$own" >/dev/null
    "$py" -c "$check" >/dev/null || return 1
    touch "$home/.ready"
    say "$name is ready: $("$py" -m pip list --disable-pip-version-check 2>/dev/null | grep -i -E '^(torchft|nvidia.resiliency|dlrover)' | tr -s ' ' | head -1)"
}

failed=0
make_one torchft 'import torchft' \
    '--no-deps torchft-nightly==2026.10.26' \
    'opentelemetry-exporter-otlp-proto-http>=1.39 opentelemetry-sdk>=1.39' ||
    { say "torchft could not be made" >&2; failed=1; }
make_one nvrx 'import nvidia_resiliency_ext.inprocess, nvidia_resiliency_ext.fault_tolerance' \
    '--no-deps nvidia-resiliency-ext==0.4.1' \
    'defusedxml nvidia-ml-py packaging psutil pynvml pyyaml' ||
    { say "nvrx could not be made" >&2; failed=1; }
# Its local master imports what the package declares as extras only.
make_one dlrover 'import dlrover.python.master.main' \
    '--no-deps dlrover==0.6.1' \
    'psutil pynvml deprecated requests packaging grpcio protobuf kubernetes tornado' ||
    { say "dlrover could not be made" >&2; failed=1; }
exit "$failed"
