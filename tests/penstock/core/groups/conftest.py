"""A coordinator at a desk (`support.group_desk`)."""

import pytest
from support.group_desk import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()
