# `make demo` and `make test` do all their own set-up on a machine that has Python 3.11 or newer.
#
#   VENV=dir       the environment to use or to make (default .venv)
#   PYTHON=python  the Python to make it with (default python3); a PyTorch that it has is used
#   ARGS="..."     more arguments for pytest, the demo or the benchmark

VENV   ?= .venv
PYTHON ?= python3
ARGS   ?=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.taskd-setup

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster test test-fast test-kube test-cluster kube cluster cluster-down lint format matrix rounds kills soak \
        bench-launcher bench-recovery bench-operator bench-plane bench-cluster bench-peers anatomy anatomy-cluster wheel crd manifests clean \
        clean-venv

help:
	@echo 'make demo            watch a four-process training run lose a process and go on'
	@echo 'make demo-cluster    watch a job in a real Kubernetes live through four faults (root, some minutes)'
	@echo 'make test            everything: ruff, mypy --strict, import contracts, all tests'
	@echo 'make test-fast       the tests without the slow ones, under a minute'
	@echo 'make test-kube       only the tests on a real Kubernetes'
	@echo 'make test-cluster    only those on three real nodes, the long ones too (root)'
	@echo 'make kube            build that Kubernetes (once per machine; Go, ten minutes)'
	@echo 'make cluster         start one with three real nodes on this machine (root), and say its KUBECONFIG'
	@echo 'make cluster-down    end it, or clear what is left of it'
	@echo 'make lint            ruff, mypy --strict, import contracts'
	@echo 'make format          let ruff format and fix'
	@echo 'make matrix          kill each rank at each point of a step, and simulate thousands of jobs'
	@echo 'make rounds          kill manager and proxy 30 times at each point of an order'
	@echo 'make kills           kill the AscendJob controller before and after each of its writes, on a real Kubernetes'
	@echo 'make soak            200 random faults in one run (TASKD_SOAK=N, TASKD_SEED=N)'
	@echo 'make bench-launcher  detection, replacement and restart times'
	@echo 'make bench-recovery  what a fault costs, here and under other tools; and what readiness costs'
	@echo 'make bench-operator  the operator on a real API server, beside others (25 min; ARGS=--quick: 3)'
	@echo 'make bench-plane     the control plane with 1,000 jobs over loopback: memory, and fault to order'
	@echo 'make bench-cluster   what faults cost in real pods, beside local runs and bare pods (root)'
	@echo 'make bench-peers     install those other tools, each on its own, below out/peers (optional)'
	@echo 'make anatomy         where the time of a recovery goes'
	@echo 'make anatomy-cluster where the time of a new pod goes (root)'
	@echo 'make wheel           a wheel in dist/'
	@echo 'make crd             deploy/crd/ from tools/crd.yaml and the cluster that kubectl talks to'
	@echo 'make manifests       what is derived: the kustomize base from the Helm chart, the table of promises'
	@echo 'make setup           only the environment (the others call it)'
	@echo 'make clean           remove what was built; make clean-venv removes $(VENV) too'

# The stamp is older than any of these after a change, so the next target sets up again.
$(STAMP): pyproject.toml hatch_build.py native/libtaskd.c tools/setup.sh
	@bash tools/setup.sh '$(VENV)' '$(PYTHON)'
	@touch $@

setup: $(STAMP)

# Bytecode of the sources as they are now: without it, where PYTHONDONTWRITEBYTECODE is set, every process
# of a run compiles them again. Costs a tenth of a second when nothing changed.
COMPILE = $(BIN)/python -m compileall -q src

demo: $(STAMP)
	@$(COMPILE)
	@$(BIN)/python demo/demo.py $(ARGS)

demo-cluster: $(STAMP)
	@$(COMPILE)
	@$(CLUSTER) build
	@$(BIN)/python demo/cluster.py $(ARGS)

# Tests that were chosen with ARGS may all be of one half, and pytest ends with 5 where it finds none.
OR_NONE = $(if $(ARGS),|| [ $$? -eq 5 ])

# The programs of the cluster tests are built once per machine, where there is Go; where there is neither, the
# last line says what was not shown (and in CI the first line is an error).
KUBE = $(BIN)/python -m taskd.testing.kube
CLUSTER = $(BIN)/python -m taskd.testing.cluster

test: lint
	@$(COMPILE)
	@$(KUBE) build --if-possible
	@$(CLUSTER) build --if-possible
	@echo 'test: pytest, what is quick, on two cores'
	@$(BIN)/python -m pytest -n 2 -m 'not slow and not kube' $(ARGS) $(OR_NONE)
ifeq ($(ARGS),)
	@echo 'test: pytest, what trains; beside it, printed after it, what runs on a real Kubernetes or starts roles'
	@$(BIN)/python tools/side_by_side.py \
	    "$(BIN)/python -m pytest -m 'slow and not kube and not matrix' --durations=15 --ignore tests/roles --ignore tests/pods" \
	    "nice -n 10 $(BIN)/python -m pytest -m 'kube and not (cluster and slow) and not matrix' --durations=15" \
	    "$(BIN)/python -m pytest -m 'slow and not kube and not matrix' --durations=15 tests/roles tests/pods"
else
	@$(BIN)/python -m pytest -m 'slow or kube' $(ARGS) $(OR_NONE)
endif
	@$(KUBE) shown
	@$(CLUSTER) shown

test-fast: $(STAMP)
	@$(COMPILE)
	@$(BIN)/python -m pytest -n 2 -m 'not slow and not kube' $(ARGS)

test-kube: kube
	@$(COMPILE)
	@$(BIN)/python -m pytest -n 2 -m 'kube and not cluster' $(ARGS) $(OR_NONE)
	@$(BIN)/python -m pytest -m 'cluster and not slow' $(ARGS) $(OR_NONE)

test-cluster: $(STAMP)
	@$(COMPILE)
	@$(CLUSTER) build
	@$(BIN)/python -m pytest -m cluster $(ARGS)

kube: $(STAMP)
	@$(KUBE) build

cluster: $(STAMP)
	@$(CLUSTER) up

cluster-down: $(STAMP)
	@$(CLUSTER) down

lint: $(STAMP)
	@echo 'lint: ruff'
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@echo 'lint: mypy --strict'
	@$(BIN)/mypy --strict
	@echo 'lint: import contracts'
	@$(BIN)/lint-imports --no-cache

format: $(STAMP)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

matrix: $(STAMP)
	@$(COMPILE)
	@TASKD_MATRIX=1 $(BIN)/python -m pytest tests/train/test_recovery.py tests/train/test_topologies.py tests/train/test_usage.py tests/train/test_kinds.py tests/train/test_ending.py tests/train/test_switch.py tests/train/test_plain_torchrun.py tests/sim -m 'not matrix' $(ARGS)
	@$(BIN)/python -m pytest -m matrix $(ARGS)

soak: $(STAMP)
	@$(COMPILE)
	@TASKD_SOAK=$${TASKD_SOAK:-200} $(BIN)/python -m pytest tests/train/test_soak.py -s -o timeout=7200 $(ARGS)

rounds: $(STAMP)
	@$(COMPILE)
	@TASKD_ROUNDS=30 $(BIN)/python -m pytest tests/roles/test_role_faults.py -k every_order -o timeout=1500 $(ARGS)

kills: kube
	@$(COMPILE)
	@TASKD_KILLS=all $(BIN)/python -m pytest tests/kube/operator/test_kills.py $(ARGS)

bench-launcher: $(STAMP)
	@$(COMPILE)
	@$(BIN)/python bench/launcher.py $(ARGS)

bench-recovery: $(STAMP)
	@$(COMPILE)
	@$(BIN)/python bench/run_recovery.py $(ARGS)

bench-operator: $(STAMP)
	@$(COMPILE)
	@$(BIN)/python bench/run_operator.py $(ARGS)

bench-plane: $(STAMP)
	@$(COMPILE)
	@$(BIN)/python bench/plane.py $(ARGS)

bench-cluster: $(STAMP)
	@$(COMPILE)
	@$(CLUSTER) build
	@$(BIN)/python bench/cluster.py $(ARGS)

bench-peers: $(STAMP)
	@bash tools/peers.sh '$(BIN)/python'

anatomy: $(STAMP)
	@$(COMPILE)
	@$(BIN)/python bench/run_anatomy.py $(ARGS)

anatomy-cluster: $(STAMP)
	@$(COMPILE)
	@$(CLUSTER) build
	@$(BIN)/python bench/pod_anatomy.py $(ARGS)

wheel: $(STAMP)
	@$(BIN)/python -m hatchling build -t wheel

# Written aside: the old definition stays where there is no cluster to ask.
crd: $(STAMP)
	@kubectl get --raw /openapi/v3/api/v1 | $(BIN)/python tools/crd.py > deploy/crd/.ascendjobs.yaml || { rm deploy/crd/.ascendjobs.yaml; exit 1; }
	@mv deploy/crd/.ascendjobs.yaml deploy/crd/ascendjobs.yaml

manifests: $(STAMP)
	@$(BIN)/python tools/manifests.py
	@$(BIN)/python tools/promises.py

clean:
	rm -rf build dist taskd_log .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f src/taskd/python/cython_api/libs/*.so $(STAMP)
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

clean-venv: clean
	rm -rf '$(VENV)'
