"""The import paths and names that users' images and scripts depend on, as data.

A row that fails is a broken image somewhere. Rows are added with the feature that they belong to and are
never removed.
"""

import dataclasses
import importlib
import logging
from collections.abc import Iterator

import pytest

CONSTANTS = {
    "LOCAL_HOST": "127.0.0.1",
    "CONFIG_UPSTREAMIP_KEY": "UpstreamAddr",
    "CONFIG_LISTENIP_KEY": "ListenAddr",
    "CONFIG_UPSTREAMPORT_KEY": "UpstreamPort",
    "CONFIG_LISTENPORT_KEY": "ListenPort",
    "CONFIG_ROLE_KEY": "Role",
    "CONFIG_SERVERRANK_KEY": "ServerRank",
    "CONFIG_PROCESSRANK_KEY": "ProcessRank",
    "DEFAULT_PROXY_UPSTREAMPORT": "9601",
    "DEFAULT_PRXOY_LISTENPORT": "9602",
    "DEFAULT_PROXY_ROLE": "Proxy",
    "DEFAULT_SERVERRANK": "0",
    "DEFAULT_PROCESSRANK": "-1",
    "CONFIG_FRAMEWORK_KEY": "Framework",
    "DEFAULT_AGENT_ROLE": "Agent",
    "DEFAULT_AGENT_UPSTREAMPORT": "9602",
    "DEFAULT_BIZTYPE": "DEFAULT",
}

RECORDS = {
    "Position": ["role", "server_rank", "process_rank"],
    "TLSConfig": ["ca", "server_key", "server_crt", "client_key", "client_crt"],
    "NetworkConfig": ["pos", "upstream_addr", "listen_addr", "enable_tls", "tls_conf"],
    "MessageInfo": ["uuid", "biz_type", "dst", "body"],
    "MsgBody": ["msg_type", "code", "message", "extension"],
    "AgentReportInfo": ["fault_ranks", "restart_times"],
}

FUNCTIONS = {
    "taskd_agent_api": ["init_taskd_agent", "register_func", "start_taskd_agent"],
    "taskd_manager_api": ["init_taskd_manager", "start_taskd_manager"],
    "taskd_proxy_api": ["destroy_taskd_proxy", "init_taskd_proxy"],
    "taskd_worker_api": ["destroy_taskd_worker", "init_taskd_worker", "start_taskd_worker"],
}

NAMES = [
    ("taskd", "__version__"),
    *(("taskd.api", name) for names in FUNCTIONS.values() for name in names),
    *((f"taskd.api.{module}", name) for module, names in FUNCTIONS.items() for name in names),
    ("taskd.python.cython_api.cython_api", "lib"),
    ("taskd.python.utils.log", "run_log"),
    *(("taskd.python.framework.common.type", name) for name in [*CONSTANTS, *RECORDS]),
]


@pytest.fixture(autouse=True)
def _leave_the_logger_as_it_was() -> Iterator[None]:
    """Undo what importing ``run_log`` does to the ``taskd`` logger: other tests look at its lines."""
    logger = logging.getLogger("taskd")
    before = ([*logger.handlers], logger.propagate, logger.level)
    yield
    logger.handlers[:], logger.propagate, logger.level = before


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_documented_name_can_be_imported(module: str, name: str) -> None:
    """``from module import name`` works."""
    assert hasattr(importlib.import_module(module), name)


def test_the_documented_functions_are_all_there_is() -> None:
    """``from taskd.api import *`` brings the ten functions and nothing else."""
    documented = sorted(name for names in FUNCTIONS.values() for name in names)

    assert documented == sorted(importlib.import_module("taskd.api").__all__)


def test_the_version_is_text() -> None:
    """Scripts print it and compare it."""
    assert isinstance(importlib.import_module("taskd").__version__, str)


@pytest.mark.parametrize(("name", "value"), CONSTANTS.items())
def test_a_constant_has_its_value(name: str, value: str) -> None:
    """The values go into dictionaries that other systems read."""
    assert value == getattr(importlib.import_module("taskd.python.framework.common.type"), name)


@pytest.mark.parametrize(("name", "fields"), RECORDS.items())
def test_a_record_has_its_fields_in_order(name: str, fields: list[str]) -> None:
    """Callers pass them by position."""
    record = getattr(importlib.import_module("taskd.python.framework.common.type"), name)

    assert fields == [field.name for field in dataclasses.fields(record)]


def test_a_report_starts_empty() -> None:
    """Each report has a list of its own."""
    make = importlib.import_module("taskd.python.framework.common.type").AgentReportInfo

    assert ([], -1) == (make().fault_ranks, make().restart_times)
    assert make().fault_ranks is not make().fault_ranks


def test_run_log_is_the_logger_named_taskd() -> None:
    """Handlers that a user hangs on ``taskd`` see our lines."""
    assert logging.getLogger("taskd") is importlib.import_module("taskd.python.utils.log").run_log
