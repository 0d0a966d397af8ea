"""The settings of the controller: a flag wins over the environment, and that over the file."""

from pathlib import Path

import pytest

from taskd.kube.errors import ConfigError
from taskd.operator.config import ControllerConfig, load


def test_without_a_word_everything_has_a_value() -> None:
    assert load({}, environ={}) == ControllerConfig()


def test_flag_environment_file_in_that_order(tmp_path: Path) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text("workers: 2\nconnections: 3\ngang: 'off'\n")
    environ = {"TASKD_CONTROLLER_CONNECTIONS": "4", "TASKD_CONTROLLER_WORKERS": "5"}
    config = load({"workers": 6, "gang": None}, path=str(path), environ=environ)
    assert (config.workers, config.connections, config.gang) == (6, 4, "off")


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text("leader_elect: false\n")
    assert load({}, environ={"TASKD_CONTROLLER_CONFIG": str(path)}).leader_elect is False


@pytest.mark.parametrize(("text", "value"), [("true", True), ("0", False), ("false", False)])
def test_words_of_the_environment_are_read_as_what_they_mean(text: str, value: bool) -> None:
    assert load({}, environ={"TASKD_CONTROLLER_LEADER_ELECT": text}).leader_elect is value


@pytest.mark.parametrize(
    ("flags", "environ", "content", "words"),
    [
        ({"gang": "maybe"}, {}, "", "--gang"),
        ({"workers": 0}, {}, "", "--workers"),
        ({}, {"TASKD_CONTROLLER_WORKERS": "many"}, "", "TASKD_CONTROLLER_WORKERS"),
        ({}, {}, "worker: 3", "unknown field `worker`"),
        ({}, {}, "- 1", "not a map"),
        ({}, {}, "a: [", "not YAML"),
        ({"lease_s": -1.0}, {}, "", "--lease-s"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, flags: dict[str, object], environ: dict[str, str], content: str, words: str
) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text(content or "{}")
    with pytest.raises(ConfigError, match=words):
        load(flags, path=str(path), environ=environ)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        load({}, path=str(tmp_path / "nowhere.yaml"), environ={})
