"""Options of Kubernetes before a command: no other cluster is meant by them."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from penstock.cli import completion
from penstock.cli.connect import Wanted
from penstock.cli.kube.choice import KubeChoice
from penstock.cli.main import PLUGIN, app
from penstock.cli.usage import WrongUsageError

if TYPE_CHECKING:
    from .conftest import Program

ELSEWHERE = KubeChoice(kubeconfig="/nonexistent")


def test_a_running_local_cluster_is_not_what_a_context_means(penstock: "Program") -> None:
    penstock.ok("topic", "create", "kept")
    prod = ("--context", "prod", "-n", "air", "--kubeconfig", "/nonexistent")
    for option in (prod, prod[:2], prod[2:4], prod[4:]):
        assert "kubeconfig" in penstock.fails(*option, "topic", "delete", "kept", "--yes")
    assert "kept" in penstock.ok("topic", "list")


def test_with_an_option_of_kubernetes_no_names_of_another_cluster_are_completed(
    penstock: "Program", monkeypatch: pytest.MonkeyPatch
) -> None:
    penstock.ok("topic", "create", "completed")
    monkeypatch.setattr(completion, "TIMEOUT_S", 60.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(penstock.folder / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(penstock.folder / "config"))

    def names(**before: object) -> list[str]:
        root = SimpleNamespace(params=before)
        context: Any = SimpleNamespace(find_root=lambda: root, params={})
        return completion.topics(context, "completed")

    assert names() == ["completed"]
    assert names(kubeconfig="/nonexistent") == []


def test_what_an_option_names_is_on_kubernetes() -> None:
    assert Wanted(choice=ELSEWHERE).means_kubernetes(None)
    assert Wanted(is_plugin=True).means_kubernetes(None)


def test_an_address_beside_an_option_of_kubernetes_is_refused() -> None:
    with pytest.raises(WrongUsageError, match=r"'a:1'.* are two clusters"):
        Wanted(choice=ELSEWHERE).locate("a:1")


@pytest.mark.parametrize("words", [("topic", "list"), ("verify", "run")])
def test_the_plugin_refuses_an_address_of_the_environment(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, words, prog_name=PLUGIN, env={"PENSTOCK_BOOTSTRAP": "a:1"})
    assert done.exit_code == 2
    assert "PENSTOCK_BOOTSTRAP is 'a:1', and `kubectl penstock` means a Cluster" in done.output


@pytest.mark.parametrize("of_environment", ["127.0.0.1:1", "127.0.0.1:2"])
def test_the_plugin_takes_an_address_that_is_typed(of_environment: str) -> None:
    """Also if the environment has the same one."""
    words = ("topic", "list", "--bootstrap", "127.0.0.1:1")
    environment = {"PENSTOCK_BOOTSTRAP": of_environment}
    done = CliRunner().invoke(app, words, prog_name=PLUGIN, env=environment)
    assert (done.exit_code, "nothing listens: 127.0.0.1:1" in done.output) == (1, True)
