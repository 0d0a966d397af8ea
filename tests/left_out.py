"""What a test says that cannot be run here."""

import os
from typing import NoReturn

import pytest


def leave_out(reason: str) -> NoReturn:
    """Skip, or fail where a skip would go unseen."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
