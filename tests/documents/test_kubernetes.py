"""The snippets for Kubernetes: which ones the scenario `documents` plays, and that it can."""

import pytest
from support.documents import ROOT

from e2e.harness.scenario import REGISTRY
from e2e.scenarios.documents import (
    README,
    TUTORIAL,
    build_command,
    image_command,
    pages,
    played,
)
from tools.snippets.page import SHELL, How, read, read_page

PAGE = """# Page

<!-- snippet: kubernetes -->
```bash
kubectl get pods
```

<!-- output of the last -->
```output
…
```

```bash
penstock topic list
```

<!-- output of the last -->
```output
TOPIC…
```

<!-- snippet: kubernetes -->
```yaml
kind: Topic
```
"""


def test_it_plays_what_is_for_kubernetes_and_compares_only_that() -> None:
    chosen = played(read(PAGE, "page.md"))
    assert [(one.how, one.text) for one in chosen] == [
        (How.KUBERNETES, "kubectl get pods\n"),
        (How.OUTPUT, "…\n"),
        (How.KUBERNETES, "kind: Topic\n"),
    ]


def test_the_tutorial_comes_first_as_it_installs_and_clears_away() -> None:
    assert pages()[0] == TUTORIAL
    assert len(pages()) > 1
    assert "documents" in REGISTRY


@pytest.mark.parametrize("page", pages())
def test_the_scenario_can_play_every_snippet_for_kubernetes(page: str) -> None:
    """Of a shell, or manifests; a program in Python has no cluster there."""
    chosen = [one for one in played(read_page(ROOT, page)) if one.how is How.KUBERNETES]
    assert chosen
    assert {one.language for one in chosen} <= {*SHELL, "yaml"}


def test_the_image_of_the_page_on_spark_is_built_on_the_base_that_there_is() -> None:
    published, own = image_command("python:3.12-slim"), image_command("penstock-python:3.12")
    assert "--build-arg" not in published
    assert "-f examples/spark/Dockerfile" in published
    assert own == published.replace("build ", "build --build-arg BASE=penstock-python:3.12 ")


def test_all_images_are_built_as_two_pages_show_it() -> None:
    for page in (README, TUTORIAL):
        assert build_command(page).split()[:2] == ["make", "images"]
