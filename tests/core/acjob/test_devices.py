"""Which of the things that a container requests are devices that compute."""

import pytest

from taskd.core.acjob import devices


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        ({"nvidia.com/gpu": 8}, ("nvidia.com/gpu", 8)),
        ({"nvidia.com/mig-1g.10gb": 4, "nvidia.com/hostdev": 1}, ("nvidia.com/mig-1g.10gb", 4)),
        ({"nvidia.com/gpu": 8, "nvidia.com/gpu.shared": 2}, ("nvidia.com/gpu", 8)),
        ({"nvidia.com/gpu": 2, "huawei.com/Ascend910": 8}, ("huawei.com/Ascend910", 8)),
        ({"huawei.com/Ascend910": 8, "cpu": 4}, ("huawei.com/Ascend910", 8)),
        ({"nvidia.com/hostdev": 1, "nvidia.com/rdma_shared_device_a": 1}, None),
        ({"huawei.com/Ascend910": 0}, None),
    ],
)
def test_only_what_computes_is_counted(amounts: dict[str, int], expected: tuple[str, int] | None) -> None:
    """A network card of the same vendor starts no process, and whole GPUs come before parts of one."""
    template = {"spec": {"containers": [{"name": "ascend", "resources": {"limits": amounts}}]}}
    found = devices.requested(template)

    assert expected == (None if found is None else (found.resource, found.count))
