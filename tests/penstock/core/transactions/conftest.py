"""A coordinator at a desk (`support.transaction_desk`)."""

import pytest
from support.transaction_desk import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()
