"""A pytest plugin for trials: Hypothesis tries the same examples each time and does not shrink.

A trial asks whether a test fails, not for the smallest example; and the same mutant must get the
same answer again. The tests of the changed module, `test_isr.py` for `isr.py`, come first.
"""

import os
from typing import Final

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase

MODULE: Final = "PENSTOCK_MUTATION_MODULE"
"""The environment variable that names the changed module."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever knows the module best is asked first."""
    first = f"test_{os.environ.get(MODULE, '')}.py"
    items.sort(key=lambda item: item.path.name != first)


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
