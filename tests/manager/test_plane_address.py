"""Where a manager finds the control plane, and what it shows there."""

import pytest

from taskd.kit.papers import NO_PAPERS, JobPapers
from taskd.links.plane import PlaneAddress
from taskd.manager.liaison import find_plane

JOB = {"MINDX_TASK_ID": "u-1"}
PLACE = {**JOB, "MINDX_SERVER_IP": "10.96.0.9"}
OWN = JobPapers("/user/taskd/certificates", "u-1")


@pytest.mark.parametrize(
    ("env", "papers", "found"),
    [
        ({}, NO_PAPERS, None),
        (JOB, OWN, None),
        (PLACE, NO_PAPERS, PlaneAddress("10.96.0.9:8899", "u-1")),
        (PLACE, OWN, PlaneAddress("10.96.0.9:8899", "u-1", "/user/taskd/certificates")),
        ({**PLACE, "TASKD_PLANE_CERTS": "/mine"}, OWN, PlaneAddress("10.96.0.9:8899", "u-1", "/mine")),
        ({**PLACE, "TASKD_PLANE": "h:1"}, OWN, PlaneAddress("h:1", "u-1", "/user/taskd/certificates")),
        ({**PLACE, "TASKD_PROCESS_ENABLE": "off"}, OWN, None),
    ],
)
def test_what_the_environment_says(
    env: dict[str, str], papers: JobPapers, found: PlaneAddress | None
) -> None:
    """The job's certificates are shown, unless others are named for the plane."""
    assert found == find_plane(env, papers)
