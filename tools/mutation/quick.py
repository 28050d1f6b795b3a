"""A pytest plugin for trials: Hypothesis tries the same examples each time and does not shrink.

A trial asks whether a test fails, not for the smallest example; and the same mutant must get the
same answer again.
"""

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase


def pytest_collection(session: pytest.Session) -> None:
    """After the tests' own conftest has chosen its profile."""
    del session
    hypothesis.settings.register_profile(
        "mutation",
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("mutation")
