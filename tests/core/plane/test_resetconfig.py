import json

from taskd.core.gojson import check_code
from taskd.core.plane.resetconfig import ResetContent, ResetKind, render

STAMP = 1_700_000_000


def test_the_vector_of_a_flushing_file() -> None:
    """Text and check code are those of the specification."""
    data = render(ResetContent(ResetKind.FLUSHING), {}, STAMP)

    assert {
        "reset.json": '{"RankList":[],"UpdateTime":1700000000,"RetryTime":0,"FaultFlushing":true,'
        '"GracefulExit":0,"RestartFaultProcess":false}',
        "checkCode": "f642b26990294df0e918ff6cfcc2511ff487eb0d38a25ddba00f9ab0260a51b4",
    } == data


def test_the_vector_of_a_rank_in_place() -> None:
    """Also with a rank, in place, after a restart."""
    before = {"reset.json": '{"RetryTime":1}'}
    data = render(ResetContent(ResetKind.FAULTY, (8,), in_place=True), before, STAMP)

    assert isinstance(data, dict)
    assert "28468b1bdb07e947572535130abde24be2286cc07ceee488d97416f88e6bdf10" == data["checkCode"]


def test_restarting_all_counts_once() -> None:
    """The count goes up by one, everything else is clear; a graceful exit that somebody asked for stays."""
    before = {"reset.json": '{"RetryTime":4,"GracefulExit":1,"FaultFlushing":true}'}
    data = render(ResetContent(ResetKind.RESTART_ALL), before, STAMP)

    assert isinstance(data, dict)
    found = json.loads(data["reset.json"])
    assert (5, 1, False, []) == (
        found["RetryTime"],
        found["GracefulExit"],
        found["FaultFlushing"],
        found["RankList"],
    )
    assert check_code(data["reset.json"]) == data["checkCode"]


def test_a_hot_reset_is_not_disturbed() -> None:
    """While the device plugin resets a chip, the file is left alone."""
    before = {"reset.json": '{"RankList":[{"RankId":1,"Status":"unrecovered","Policy":"reset"}]}'}

    assert "a hot reset of devices is under way" == render(ResetContent(ResetKind.CLEAR), before, STAMP)


def test_a_broken_file_is_replaced() -> None:
    """What nobody can read is not worth keeping."""
    for text in ("{", "[]", '{"RetryTime":"x"}', '{"RankList":3}'):
        data = render(ResetContent(ResetKind.CLEAR), {"reset.json": text}, STAMP)

        assert isinstance(data, dict)
        assert 0 == json.loads(data["reset.json"])["RetryTime"]
