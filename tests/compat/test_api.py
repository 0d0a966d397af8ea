"""The documented functions: their signatures as data, and what they answer to right and wrong input."""

import copy
import importlib
import inspect
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import taskd.agent.legacy
import taskd.manager.legacy
import taskd.proxy.legacy
import taskd.worker.legacy
from taskd import api
from taskd.agent.callbacks import Look, MissingCallbackError, parse_monitor
from taskd.core.exits import Exit
from taskd.kit import container, sidecar
from taskd.kit.jobs import read_start_ticks
from taskd.proxy.config import ProxyConfig

# Name, parameters with their defaults, and the annotation of the answer where it is documented.
SIGNATURES: list[tuple[str, list[tuple[str, object]], object]] = [
    ("init_taskd_manager", [("config", inspect.Parameter.empty)], bool),
    ("start_taskd_manager", [], bool),
    (
        "init_taskd_worker",
        [("rank_id", inspect.Parameter.empty), ("upper_limit_of_disk_in_mb", 5000), ("framework", "pt")],
        bool,
    ),
    ("start_taskd_worker", [], bool),
    ("destroy_taskd_worker", [], bool),
    ("init_taskd_agent", [("config", inspect.Parameter.empty), ("cls", None)], bool),
    ("register_func", [("operator", inspect.Parameter.empty), ("func", inspect.Parameter.empty)], bool),
    ("start_taskd_agent", [], object),
    ("init_taskd_proxy", [("config", inspect.Parameter.empty)], bool),
    ("destroy_taskd_proxy", [], bool),
]

BAD_MANAGERS: list[object] = [
    None,
    [],
    "config",
    {"job_id": 7},
    {"job_id": "a/b"},
    {"job_id": ".hidden"},
    {"node_nums": "2"},
    {"node_nums": 1.5},
    {"node_nums": True},
    {"node_nums": -1},
    {"proc_per_node": "8"},
    {"proc_per_node": -8},
    {"plugin_dir": 1},
    {"fault_recover": True},
    {"taskd_enable": 1},
    {"cluster_infos": "ip"},
]
GOOD_MANAGERS: list[dict[str, object]] = [
    {},
    {"job_id": None, "node_nums": 2, "proc_per_node": 8},
    {"job_id": "uid-1", "node_nums": 0, "proc_per_node": 0},
    {"cluster_infos": [{"ip": "10.0.0.1", "port": "8899", "name": "clusterd", "role": "ClusterD"}]},
    {"cluster_infos": {"ip": "10.0.0.1"}},
    {"plugin_dir": "", "fault_recover": "on", "taskd_enable": "off"},
]
BAD_PROXIES: list[object] = [
    None,
    {"UpstreamAddr": 1},
    {"UpstreamAddr": ""},
    {"UpstreamAddr": "no such host"},
    {"UpstreamAddr": "10.0.0.999"},
    {"UpstreamPort": 9601},
    {"UpstreamPort": "port"},
    {"UpstreamPort": "0"},
    {"UpstreamPort": "65536"},
    {"ListenAddr": "!"},
    {"ListenPort": "-1"},
    {"ListenPort": 9602},
    {"ServerRank": 0},
    {"ServerRank": "first"},
]
BAD_AGENTS: list[object] = [
    None,
    {},
    {"Framework": "TensorFlow"},
    {"Framework": 1},
    {"Framework": "PyTorch"},
    {"Framework": "MindSpore", "UpstreamAddr": "no such host"},
    {"Framework": "MindSpore", "UpstreamPort": 9602},
    {"Framework": "MindSpore", "UpstreamPort": "x"},
    {"Framework": "MindSpore", "ServerRank": "x"},
]
BAD_WORKERS: list[tuple[tuple[object, ...], dict[str, str]]] = [
    (("0",), {}),
    ((-1,), {}),
    ((0, "5000"), {}),
    ((0, -1), {}),
    ((0, 5000, "tf"), {}),
    ((0,), {"RANK": ""}),
    ((0,), {"LOCAL_WORLD_SIZE": "0"}),
    ((0,), {"RANK": "one"}),
    ((0, 5000, "ms"), {"MS_NODE_RANK": "x"}),
]


@pytest.fixture(autouse=True)
def lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> Iterator[Callable[[], list[str]]]:
    """Begin in a fresh process's state, and show the lines of the ``taskd`` logger."""
    monkeypatch.setattr(logging.getLogger("taskd"), "propagate", True)
    monkeypatch.setattr(taskd.manager.legacy, "_settings", None)
    monkeypatch.setattr(taskd.agent.legacy, "_agent", None)
    monkeypatch.setattr(taskd.worker.legacy, "_joined", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in [name for name in os.environ if name.startswith(("TASKD_", "MS_"))]:
        monkeypatch.delenv(name)
    for name in ("RANK", "POD_IP", "LOCAL_PROXY_ENABLE", "MINDX_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TASKD_HOME", str(tmp_path / "home"))
    with caplog.at_level(logging.WARNING, "taskd"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "taskd"]
    api.destroy_taskd_proxy()


@pytest.mark.parametrize(("name", "parameters", "answer"), SIGNATURES)
def test_a_function_has_its_signature(
    name: str, parameters: list[tuple[str, object]], answer: object
) -> None:
    """Scripts call it by position and by keyword."""
    signature = inspect.signature(getattr(api, name))

    assert parameters == [(each.name, each.default) for each in signature.parameters.values()]
    assert answer == signature.return_annotation


def test_importing_the_functions_loads_neither_grpc_nor_an_event_loop() -> None:
    """A training script imports them before its data loaders fork."""
    ask = "import sys, taskd.api; print(*sorted({'grpc', 'asyncio', 'structlog', 'torch'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True, timeout=60)

    assert "\n" == done.stdout


# --- manager ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", BAD_MANAGERS, ids=repr)
def test_a_wrong_manager_config_is_false_and_one_line(
    config: dict[str, object], lines: Callable[[], list[str]]
) -> None:
    """The line says what is wrong and begins with the function that was called."""
    assert api.init_taskd_manager(config) is False
    assert 1 == len(lines())
    assert lines()[0].startswith("init_taskd_manager: ")


@pytest.mark.parametrize("config", GOOD_MANAGERS, ids=repr)
def test_a_good_manager_config_is_true_and_stays_as_it_was(
    config: dict[str, object], lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference system writes into the caller's dictionary; TaskD does not."""
    monkeypatch.setenv("PROCESS_RECOVER", "on")
    before = copy.deepcopy(config)

    assert api.init_taskd_manager(config) is True
    assert (before, []) == (config, lines())


def test_unknown_keys_are_ignored_with_one_line(lines: Callable[[], list[str]]) -> None:
    """A manager.py written for a later version still runs."""
    assert api.init_taskd_manager({"zeal": 1, "colour": "red"}) is True
    assert 1 == len(lines())
    assert "ignored colour, zeal" in lines()[0]


def test_a_second_config_must_be_the_same(lines: Callable[[], list[str]]) -> None:
    """Silently keeping the first one would manage another job than the caller asked for."""
    assert api.init_taskd_manager({"job_id": "a", "node_nums": 1}) is True
    assert api.init_taskd_manager({"job_id": "a", "node_nums": 1}) is True
    assert api.init_taskd_manager({"job_id": "b", "node_nums": 1}) is False
    assert 1 == len(lines())


@pytest.mark.parametrize(
    ("env", "job"),
    [({}, "default"), ({"MINDX_TASK_ID": "uid-7"}, "uid-7"), ({"MINDX_TASK_ID": ""}, "default")],
)
def test_a_job_without_a_name_takes_that_of_the_environment(env: dict[str, str], job: str) -> None:
    """``os.getenv("MINDX_TASK_ID")`` outside a cluster is None, and that must do."""
    assert job == taskd.manager.legacy.ManagerSettings.from_legacy({"job_id": None}, env).job


@pytest.mark.parametrize(
    ("env", "host"),
    [
        ({}, "127.0.0.1"),
        ({"POD_IP": ""}, "127.0.0.1"),
        ({"POD_IP": "10.1.2.3"}, "10.1.2.3"),
        ({"POD_IP": "fd00::1"}, "[fd00::1]"),
        ({"POD_IP": "10.1.2.3", "LOCAL_PROXY_ENABLE": "on"}, "127.0.0.1"),
    ],
)
def test_the_manager_listens_at_the_pods_address(env: dict[str, str], host: str) -> None:
    """Loopback where there is no pod, and where a TLS sidecar stands in front."""
    assert host == taskd.manager.legacy.choose_host(env)


@pytest.mark.parametrize(
    "env",
    [
        {"POD_IP": "0.0.0.0"},
        {"POD_IP": "::"},
        {"POD_IP": "224.0.0.1"},
        {"POD_IP": "pod"},
        {"TASKD_MANAGER_PORT": "many"},
        {"TASKD_MANAGER_PORT": "0"},
        {"TASKD_MANAGER_PORT": "70000"},
    ],
    ids=repr,
)
def test_a_manager_that_cannot_listen_there_is_false_and_one_line(
    env: dict[str, str], lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listening everywhere, or at a port that is none, is refused before anything starts."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    assert api.init_taskd_manager({"node_nums": 1}) is True
    assert api.start_taskd_manager() is False
    assert 1 == len(lines())
    assert next(iter(env)) in lines()[0]


MANAGER_SCRIPT = """
from taskd.api import init_taskd_manager, start_taskd_manager
print(init_taskd_manager({"node_nums": 1}), start_taskd_manager())
"""


def test_a_manager_whose_port_is_taken_is_false_and_one_line() -> None:
    """A manager that nobody can reach must not look like a success."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = subprocess.run(
            [sys.executable, "-c", MANAGER_SCRIPT],
            env={**os.environ, "TASKD_MANAGER_PORT": str(taken.getsockname()[1])},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert "True False\n" == done.stdout
    assert done.stderr.startswith("start_taskd_manager: cannot listen on 127.0.0.1:")
    assert 1 == done.stderr.count("\n")


def test_the_log_directory_is_private_and_a_bad_one_costs_one_line(
    tmp_path: Path, lines: Callable[[], list[str]]
) -> None:
    """A log is not worth a training run."""
    path = Path(container.role_log("manager.log", {"TASKD_LOG_PATH": str(tmp_path / "deep" / "logs")}))
    (tmp_path / "file").touch()

    assert 0o750 == path.parent.stat().st_mode & 0o777
    assert os.devnull == container.role_log("manager.log", {"TASKD_LOG_PATH": str(tmp_path / "file")})
    assert 1 == len(lines())


def test_starting_before_init_is_false(lines: Callable[[], list[str]]) -> None:
    """Each start, and the worker's end, says what to call first; the agent's start answers None."""
    assert api.start_taskd_manager() is False
    assert api.start_taskd_worker() is False
    assert api.destroy_taskd_worker() is False
    assert api.register_func("MONITOR", print) is False
    assert api.start_taskd_agent() is None
    assert 5 == len(lines())


# --- proxy -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", BAD_PROXIES, ids=repr)
def test_a_wrong_proxy_config_is_false_and_one_line(
    config: dict[str, object], lines: Callable[[], list[str]]
) -> None:
    """Nothing is started, and the line names the key."""
    assert api.init_taskd_proxy(config) is False
    assert not sidecar.sidecar.wanted
    assert 1 == len(lines())
    assert lines()[0].startswith("init_taskd_proxy: ")


@pytest.mark.parametrize(
    ("config", "env", "manager", "node"),
    [
        ({}, {}, "127.0.0.1:9601", "0"),
        ({"UpstreamAddr": "10.0.0.1", "UpstreamPort": "7000"}, {"RANK": "3"}, "10.0.0.1:7000", "3"),
        ({"UpstreamAddr": "[fd00::1]", "ServerRank": "2"}, {"RANK": "3"}, "[fd00::1]:9601", "2"),
        ({"UpstreamAddr": "fd00::1"}, {"MS_NODE_RANK": "1"}, "[fd00::1]:9601", "1"),
        ({"UpstreamAddr": "localhost"}, {}, "localhost:9601", "0"),
        ({"UpstreamAddr": "10.0.0.1"}, {"LOCAL_PROXY_ENABLE": "on"}, "127.0.0.1:9601", "0"),
    ],
)
def test_a_proxy_calls_the_manager_that_it_was_given(
    config: dict[str, object], env: dict[str, str], manager: str, node: str
) -> None:
    """An IP address with or without brackets or a name; a sidecar on this machine goes before all."""
    wanted = taskd.proxy.legacy.parse_proxy_config(config, env)

    assert (manager, node) == (wanted.manager, wanted.node)


def test_the_listen_port_names_the_socket() -> None:
    """Agents and workers that are given the same number find the same proxy."""
    wanted = taskd.proxy.legacy.parse_proxy_config({"ListenPort": "9777"}, {})

    assert wanted.socket == container.socket_path("9777")
    assert wanted.socket != container.socket_path("9602")


def test_a_proxy_starts_once_and_ends(lines: Callable[[], list[str]], tmp_path: Path) -> None:
    """The second init changes nothing; after the end its process and its socket are gone."""
    assert api.init_taskd_proxy({"UpstreamPort": "1"}) is True
    pid = sidecar.sidecar.pid
    assert sidecar.answers(container.socket_path("9602"))
    assert api.init_taskd_proxy({"UpstreamPort": "2"}) is True
    assert pid == sidecar.sidecar.pid
    assert [] == lines()

    assert api.destroy_taskd_proxy() is True
    assert api.destroy_taskd_proxy() is True
    assert not Path(f"/proc/{pid}").exists()
    assert not Path(container.socket_path("9602")).exists()


PROXY_SCRIPT = """
import threading, time
from taskd.api import init_taskd_proxy
from taskd.kit.sidecar import sidecar
thread = threading.Thread(target=init_taskd_proxy, args=({"UpstreamPort": "1"},), daemon=True)
thread.start()
thread.join()
print(sidecar.pid, flush=True)
time.sleep(60)
"""


def test_a_proxy_outlives_the_thread_that_asked_for_it_but_not_the_process(tmp_path: Path) -> None:
    """Users call init in a thread, which ends; and kill -9 of their process must not leave a proxy behind."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    script = [sys.executable, "-c", PROXY_SCRIPT]
    with subprocess.Popen(script, env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.3)  # the kernel would have ended it by now
        assert read_start_ticks(pid) is not None
        parent.kill()

    deadline = time.monotonic() + 10
    while read_start_ticks(pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_port_that_is_served_already_is_false_and_one_line(
    lines: Callable[[], list[str]], tmp_path: Path
) -> None:
    """Two proxies at one socket would each hold half of the container."""
    path = container.socket_path("9602")
    Path(path).parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()

        assert api.init_taskd_proxy({}) is False
    assert 1 == len(lines())
    assert "choose another ListenPort" in lines()[0]


def test_a_proxys_config_is_what_its_process_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is started by name, so only a test sees that both sides mean the same."""
    seen: list[object] = []

    def start(config: object, wait_s: float = 0.0) -> str:
        seen.append(config)
        return ""

    monkeypatch.setattr(sidecar.sidecar, "start", start)
    assert api.init_taskd_proxy({}) is True
    assert api.init_taskd_agent({"Framework": "MindSpore"}) is True

    for config in seen:
        assert isinstance(msgspec.convert(config, ProxyConfig), ProxyConfig)
        # What concerns the succession of launchers is not for a proxy that has none.
        succession = {"term", "standby", "roster_file", "pace"}
        fields = {each.name for each in msgspec.inspect.type_info(ProxyConfig).fields}  # type: ignore[attr-defined]
        assert fields - succession == set(config)  # type: ignore[call-overload]
    assert 2 == len(seen)


# --- worker ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("args", "env"), BAD_WORKERS, ids=repr)
def test_a_wrong_worker_argument_is_false_and_one_line(
    args: tuple[object, ...],
    env: dict[str, str],
    lines: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line names the argument or the variable."""
    for name, value in {"RANK": "0", "LOCAL_WORLD_SIZE": "1", **env}.items():
        monkeypatch.setenv(name, value)
    init: Callable[..., bool] = api.init_taskd_worker

    assert init(*args) is False
    assert 1 == len(lines())
    assert lines()[0].startswith("init_taskd_worker: ")


WORKER_SCRIPT = """
import signal, threading
from taskd.api import destroy_taskd_worker, init_taskd_worker, start_taskd_worker
handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
for _ in range(2):
    print(init_taskd_worker(5, framework="pt"), start_taskd_worker(), destroy_taskd_worker())
print(destroy_taskd_worker(), threading.active_count())
print(handlers == [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)])
"""


@pytest.mark.parametrize("with_proxy", [False, True])
def test_a_worker_comes_and_goes_with_or_without_a_proxy(with_proxy: bool, tmp_path: Path) -> None:
    """In a real process: init, start and destroy, twice; no thread, and the signals stay the script's."""
    if with_proxy:
        assert api.init_taskd_proxy({"UpstreamPort": "1", "ServerRank": "1"}) is True
    env = {**os.environ, "TMPDIR": str(tmp_path), "RANK": "5", "LOCAL_WORLD_SIZE": "4"}
    done = subprocess.run(
        [sys.executable, "-c", WORKER_SCRIPT], env=env, check=True, capture_output=True, text=True, timeout=60
    )

    assert "True True True\nTrue True True\nFalse 1\nTrue\n" == done.stdout
    assert with_proxy == Path(container.page_path(container.socket_path("9602"), 5)).exists()


# --- agent -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", BAD_AGENTS, ids=repr)
def test_a_wrong_agent_config_is_false_and_one_line(
    config: dict[str, object], lines: Callable[[], list[str]]
) -> None:
    """Nothing is started, not even the proxy that an msrun's agent brings."""
    assert api.init_taskd_agent(config) is False
    assert not sidecar.sidecar.wanted
    assert 1 == len(lines())
    assert lines()[0].startswith("init_taskd_agent: ")


def test_callbacks_are_registered_under_their_documented_names(lines: Callable[[], list[str]]) -> None:
    """An operator that does not exist, or something that cannot be called, is False and one line."""

    class Elastic:
        def get_worker_group(self) -> None: ...

    assert api.init_taskd_agent({"Framework": "PyTorch", "ServerRank": "0"}, Elastic()) is True
    for operator in ("KILL_WORKER", "START_ALL_WORKER", "MONITOR", "RESTART", "START_WORKER_LIST"):
        assert api.register_func(operator, print) is True
    assert [] == lines()
    assert api.register_func("PAUSE", print) is False
    assert api.register_func("MONITOR", "not a function") is False  # type: ignore[arg-type]
    assert 2 == len(lines())


def test_an_msrun_without_all_its_callbacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Going on without one would fail at the first fault, hours later."""
    monkeypatch.setattr(sidecar.sidecar, "start", lambda *_, **__: "")
    assert api.init_taskd_agent({"Framework": "MindSpore"}) is True
    assert api.register_func("MONITOR", print) is True

    with pytest.raises(MissingCallbackError, match="KILL_WORKER, START_ALL_WORKER, START_WORKER_LIST"):
        api.start_taskd_agent()


@pytest.mark.parametrize(
    ("status", "look"),
    [
        (None, Look(11)),
        (0, Look(11, exit=Exit(code=0))),
        (200, Look(11, started=False)),
        (1, Look(11, exit=Exit(code=1))),
        (300, Look(11, exit=Exit())),
        (-9, Look(11, exit=Exit(signal=9))),
    ],
)
def test_msruns_status_numbers_have_their_meaning(status: int | None, look: Look) -> None:
    """None runs, 200 has not been started, 0 is done, and everything else is a fault."""
    assert {1: look} == parse_monitor({1: {"pid": 11, "status": status, "global_rank": 1}})


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {"0": {"pid": 1, "status": None, "global_rank": 0}},
        {0: None},
        {0: {"pid": "1", "status": None, "global_rank": 0}},
        {0: {"pid": 1, "status": "ok", "global_rank": 0}},
        {0: {"pid": 1, "global_rank": 0}},
        {0: {"pid": 1, "status": None}},
    ],
    ids=repr,
)
def test_a_monitor_answer_of_another_shape_is_ignored(answer: object) -> None:
    """One bad round changes nothing."""
    assert parse_monitor(answer) is None


def test_the_sub_modules_hold_the_same_functions() -> None:
    """``taskd.api.taskd_worker_api.init_taskd_worker`` is the one in ``taskd.api``: there is one state."""
    for role in ("manager", "worker", "agent", "proxy"):
        module = importlib.import_module(f"taskd.api.taskd_{role}_api")
        for name in module.__all__:
            assert getattr(module, name) is getattr(api, name)
