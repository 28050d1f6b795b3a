"""Names of topics and groups that no other test has."""

import pytest


def own_name(request: pytest.FixtureRequest) -> str:
    """The test's own, as a topic or group may be called: letters, digits and dots, 200 at most."""
    return "".join(c if c.isalnum() else "." for c in request.node.name)[-200:]
