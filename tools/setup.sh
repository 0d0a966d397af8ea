#!/usr/bin/env bash
# Make the project's own environment: everything that `make demo` and `make test` need.
#
# usage: tools/setup.sh VENV PYTHON
#
# PyTorch comes in builds for particular devices, and a machine often has the right one already. So a torch
# that PYTHON or an existing VENV can import (2.6 or newer) is used, and only where there is none is one
# installed. uv does the work because it is an order of magnitude faster than pip; pip is the fall-back.
# Everything is compiled to bytecode now: where PYTHONDONTWRITEBYTECODE is set, every start of every
# training process would otherwise compile torch again.
set -euo pipefail

venv=${1:?usage: tools/setup.sh VENV PYTHON}
python=${2:?usage: tools/setup.sh VENV PYTHON}
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 2; }

# Directory of a usable torch, or nothing. Looks only, because importing torch takes seconds.
torch_dir() {
    "$1" - <<'PY' 2>/dev/null || true
import importlib.metadata, importlib.util, pathlib, re
spec = importlib.util.find_spec("torch")
found = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("torch"))
if spec and spec.origin and found and tuple(map(int, found.groups())) >= (2, 6):
    print(pathlib.Path(spec.origin).parent.parent)
PY
}

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
if [ -x "$venv/bin/python" ]; then
    "$venv/bin/python" -c "$new_enough" ||
        fail "$venv has $("$venv/bin/python" --version), and TaskD needs 3.11 or newer (3.10 reached its end of life in October 2026). Remove it (make clean-venv) or name another: make setup VENV=..."
    say "using the environment in $venv"
else
    command -v "$python" >/dev/null ||
        fail "there is no '$python' here. Install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3"
    "$python" -c "$new_enough" ||
        fail "'$python' is $("$python" --version 2>&1), and TaskD needs 3.11 or newer (3.10 reached its end of life in October 2026). Name a newer one: make setup PYTHON=/path/to/python3"
    have=$(torch_dir "$python")
    say "making an environment in $venv with $("$python" --version)${have:+, sharing the PyTorch that it has}"
    "$python" -m venv ${have:+--system-site-packages} "$venv" ||
        fail "'$python -m venv' failed (message above). On Debian and Ubuntu: apt install python3-venv"
    if [ -n "$have" ] && [ -z "$(torch_dir "$venv/bin/python")" ]; then
        # PYTHON is itself in a virtual environment: its packages are not the system's.
        site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        printf '%s\n' "$have" >"$site/_shared_torch.pth"
    fi
fi
py="$venv/bin/python"

extra=""
if [ -n "$(torch_dir "$py")" ]; then
    say "PyTorch is there: $("$py" -c 'import importlib.metadata as m; print(m.version("torch"))')"
else
    extra="[torch]"
    say "PyTorch is not there: it will be downloaded (a few GB; the longest part)"
fi

"$py" -m pip --version >/dev/null 2>&1 || "$py" -m ensurepip --upgrade >/dev/null 2>&1 || true

uv_install() {
    # Also where the packages that are shared have one: its command would not be in this environment.
    [ -x "$venv/bin/uv" ] ||
        "$py" -m pip install --quiet --disable-pip-version-check --ignore-installed uv || return 1
    # uv does not read pip's settings; a mirror or a certificate set for pip is meant for it too.
    local index extra_index
    index=${PIP_INDEX_URL:-$("$py" -m pip config get global.index-url 2>/dev/null || true)}
    extra_index=${PIP_EXTRA_INDEX_URL:-$("$py" -m pip config get global.extra-index-url 2>/dev/null || true)}
    if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX=$index; fi
    if [ -n "$extra_index" ] && [ -z "${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}" ]; then export UV_INDEX=$extra_index; fi
    if [ -n "${PIP_CERT:-}" ] && [ -z "${SSL_CERT_FILE:-}" ]; then export SSL_CERT_FILE=$PIP_CERT; fi
    export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
    # Reinstalled each time: uv would take the cached build, and libtaskd.so lies in the tree.
    "$venv/bin/uv" pip install --quiet --python "$py" --compile-bytecode --reinstall-package taskd \
        --group dev --editable ".$extra"
}

pip_install() {
    # --group came with pip 25.1, newer than the one that Python 3.11 carries.
    "$py" -m pip install --quiet --upgrade "pip>=25.1" &&
        "$py" -m pip install --quiet --group dev --editable ".$extra" || return 1
    "$py" -m compileall -q -j 0 "$("$py" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" >/dev/null || true
}

started=$SECONDS
say "installing TaskD, its dependencies and the test tools (uv)"
if ! uv_install; then
    say "uv could not do it (message above, if any); trying pip, which takes minutes"
    pip_install || fail "the installation failed (message above). Is the package index reachable from here?"
fi
"$py" -m compileall -q src
if [ ! -e src/taskd/python/cython_api/libs/libtaskd.so ]; then
    say "no C compiler: libtaskd.so was left out. Only LD_PRELOAD lines that name it, and their tests, need it"
fi
say "done in $((SECONDS - started)) s"
