"""What a scenario is, and the stage it plays on.

    @scenario("The leader's pod is deleted under load")
    def leader_pod_deleted(stage: Stage) -> None:
        with stage.workload() as load:
            load.started()
            stage.penstock.streams.delete("pod", …)
            load.goes_on()

The function's name is the scenario's. It fails by raising; `stage.measure` adds figures to the
result, `stage.expect` a condition. A workload is ended and judged when its block ends, and a
verdict that is not PASS fails the scenario. The runner heals every fault afterwards.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from e2e.harness.api_server import ApiServer
from e2e.harness.images import BROKER
from e2e.harness.kubectl import Kubectl
from e2e.harness.nodes import Nodes
from e2e.harness.penstock import OURS, Penstock
from e2e.harness.process import E2EError
from e2e.harness.report import Figure
from e2e.harness.workload import Load, Verdict, Workload

SOAK_MINUTES: Final = 30.0


@dataclass(slots=True)
class Stage:
    """A healthy cluster and what can be done to it. `logs` is this scenario's own directory.

    `limits`: a figure beyond its limit fails the scenario; otherwise it is only shown.
    `soak_minutes`: how long a scenario goes on at least that is about lasting.
    """

    name: str
    images: str
    kubectl: Kubectl
    nodes: Nodes
    api_server: ApiServer
    penstock: Penstock
    logs: Path
    say: Callable[[str], None]
    limits: bool = True
    soak_minutes: float = SOAK_MINUTES
    figures: dict[str, Figure] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)

    def measure(
        self, what: str, value: float, unit: str = "s", *, limit: float | None = None
    ) -> None:
        """A figure of the result; name it so that it reads on its own."""
        figure = self.figures[what] = Figure(round(value, 2), unit, limit)
        self.say(f"{what}: {figure}")
        self.expect(not self.limits or limit is None or value <= limit, f"{what}: {figure}")

    def expect(self, condition: object, otherwise: str) -> None:
        """Fails the scenario, saying `otherwise`, unless the condition holds."""
        if not condition:
            raise E2EError(otherwise)

    @property
    def _topic(self) -> str:
        return OURS + self.name.replace("_", "-")

    @contextmanager
    def topic(self, suffix: str = "", *, partitions: int = 6, replicas: int = 3) -> Iterator[str]:
        """A topic of this scenario, gone when the block ends."""
        name = self._topic + suffix
        sizes = (f"--partitions={partitions}", f"--replicas={replicas}")
        self.penstock.cli("topic", "create", name, *sizes)
        try:
            yield name
        except BaseException:
            with suppress(E2EError):  # it would be told instead of what went wrong
                self.penstock.cli("topic", "delete", name, "--yes")
            raise
        self.penstock.cli("topic", "delete", name, "--yes")

    def load(self, **changes: Any) -> Load:
        """This scenario's load: its own topic; `changes` are fields of Load."""
        return replace(Load(self.penstock.bootstrap, self._topic), **changes)

    @contextmanager
    def workload(self, load: Load | None = None, *, image: str = BROKER.tag) -> Iterator[Workload]:
        """Runs a load while the block does, then judges it. Raises E2EError unless it says PASS.

        `image`: whose clients write and read.
        """
        chosen = load or self.load()
        penstock = self.penstock
        workload = Workload(penstock.streams, chosen, image, self.logs, penstock.login)
        with workload:
            yield workload
            verdict = workload.verdict or workload.finish()
            self.verdicts.append(verdict)
            self.say(f"{verdict}; longest write gap {verdict.write_gap_s:.2f} s")
            self.expect(verdict.passed, f"{chosen.topic}: {verdict}")
        self.penstock.cli("topic", "delete", chosen.topic, "--yes")


@dataclass(frozen=True, slots=True)
class Scenario:
    """`fresh`: it installs the product itself, from nothing. `images`: names beside the two that
    every scenario has, see `images.IMAGES`. `short`: it is on the short list, which CI plays: what
    a release must not be without, and what is over soon. `releases`: former ones it needs images
    of, see e2e/releases.txt."""

    name: str
    title: str
    play: Callable[[Stage], None]
    fresh: bool = False
    images: tuple[str, ...] = ()
    short: bool = False
    releases: tuple[str, ...] = ()


REGISTRY: Final[dict[str, Scenario]] = {}


def scenario(
    title: str,
    *,
    fresh: bool = False,
    images: tuple[str, ...] = (),
    short: bool = False,
    releases: tuple[str, ...] = (),
) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Registers a function; scenarios are played in the order in which they are registered."""

    def register(play: Callable[[Stage], None]) -> Callable[[Stage], None]:
        name = play.__name__
        assert name not in REGISTRY, f"two scenarios are called {name}"
        REGISTRY[name] = Scenario(name, title, play, fresh, images, short, releases)
        return play

    return register
