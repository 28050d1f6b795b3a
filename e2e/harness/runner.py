"""Plays scenarios one after the other and keeps what they leave behind.

    cluster up ─▶ images built, loaded ─▶ for each: installed and healthy? ─▶ play ─▶ heal
                                                          └─ failed: logs, events ─▶ .local/e2e/NAME

A failed scenario does not stop the others, unless the cluster cannot be made healthy again. Ctrl-C
ends the scenario under way through its own blocks, heals, and reports what was played.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from e2e.harness import images
from e2e.harness.api_server import ApiServer
from e2e.harness.kubectl import Kubectl
from e2e.harness.nodes import Nodes
from e2e.harness.penstock import OPERATOR_NAMESPACE, STREAMS, Penstock
from e2e.harness.process import ROOT, CommandError, E2EError, NoClusterError, run, stream
from e2e.harness.report import LOCAL, Result
from e2e.harness.scenario import SOAK_MINUTES, Scenario, Stage

ALWAYS: Final = (images.BROKER, images.OPERATOR)


class Runner:
    """Plays scenarios on the cluster of this machine."""

    def __init__(
        self, minutes: float | None = None, *, shared: bool = False, soak: float = SOAK_MINUTES,
        strict: bool = True,
    ) -> None:  # fmt: skip
        """No scenario begins once `minutes` are over; one that is about lasting lasts `soak`.

        On a `shared` machine limits are only shown, and what failed is played once more.
        `strict`: the scenarios' Clusters are Strict.
        """
        self.kubectl = Kubectl()
        self.nodes = Nodes(self.kubectl)
        self.api_server = ApiServer(self.kubectl, self.nodes)
        self.penstock = Penstock(self.kubectl, strict=strict)
        self.results: list[Result] = []
        self._images = ""
        self._limits, self._again, self._soak = not shared, shared, soak
        self._end = None if minutes is None else time.monotonic() + 60 * minutes

    def _left_s(self) -> float | None:
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)

    def prepare(self, scenarios: Sequence[Scenario], *, build: bool = True) -> None:
        """Cluster up, images of these scenarios built and in the nodes.

        Raises NoClusterError if it cannot be made here, or not before the time is over.
        """
        names = {name for one in scenarios for name in one.images}
        wanted = [*ALWAYS, *(images.IMAGES[name] for name in sorted(names))]
        for release in sorted({each for one in scenarios for each in one.releases}):
            wanted += images.former(release)
        began = time.monotonic()
        try:
            stream(str(ROOT / "e2e/cluster/up"), timeout_s=self._left_s())
        except CommandError as error:
            raise NoClusterError(f"no cluster: {error}") from error
        say(f"cluster up: {time.monotonic() - began:.0f} s")
        on = images.base() if build else ""
        for image in wanted if build else ():
            began = time.monotonic()
            images.build(image, on)
            say(f"{image.tag} built: {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        images.load(wanted, self.nodes)
        say(f"images in the nodes: {time.monotonic() - began:.0f} s")
        self._images = images.contents(*ALWAYS)

    def play(self, scenarios: Iterable[Scenario], keep: Callable[[Result], object]) -> None:
        """Plays all of them. `keep` gets each result at once: a run of hours may end any time."""
        for one in scenarios:
            if self._left_s() == 0.0:
                say("\nthe time is over: the other scenarios are not played")
                break
            say(f"\n{one.name}: {one.title}")
            result = self._play_and_heal(one)
            if self._again and not result.passed:
                say("  once more, as this machine is not ours alone")
                result = self._play_and_heal(one)
            self.results.append(result)
            keep(result)

    def _play_and_heal(self, one: Scenario) -> Result:
        try:
            return self._play(one)
        finally:
            self._heal()

    def _play(self, one: Scenario) -> Result:
        stage, error = self._stage(one), ""
        began = time.monotonic()
        try:
            if not one.fresh:
                self._ready(stage)
                began = time.monotonic()
            one.play(stage)
        except E2EError as failure:
            error = str(failure)
            say(f"  FAILED: {error}")
            self._keep_evidence(stage)
        return _result(one, stage, time.monotonic() - began, error)

    def kubernetes(self) -> str:
        """Version of the API server."""
        return str(self.kubectl.get("node", self.nodes.control_plane())
                   ["status"]["nodeInfo"]["kubeletVersion"])  # fmt: skip

    def _stage(self, one: Scenario) -> Stage:
        logs = LOCAL / one.name
        shutil.rmtree(logs, ignore_errors=True)
        return Stage(
            name=one.name,
            images=self._images,
            kubectl=self.kubectl,
            nodes=self.nodes,
            api_server=self.api_server,
            penstock=self.penstock,
            logs=logs,
            say=lambda text: say(f"  {text}"),
            limits=self._limits,
            soak_minutes=self._soak,
        )

    def _ready(self, stage: Stage) -> None:
        """Makes sure that this build is installed and the example's cluster Ready."""
        if not self.penstock.installed(self._images):
            stage.say("installing")
            self.penstock.remove()
            self.penstock.install(self._images)
        self.penstock.create()

    def _heal(self) -> None:
        """Takes every fault back, so that the next scenario starts on a whole cluster."""
        self.api_server.heal()
        self.nodes.heal()

    def _keep_evidence(self, stage: Stage) -> None:
        """Events, objects and logs of a failed scenario."""
        stage.logs.mkdir(parents=True, exist_ok=True)
        for namespace in (STREAMS, OPERATOR_NAMESPACE):
            kubectl = self.kubectl.in_namespace(namespace)
            with suppress(E2EError):
                _write(stage.logs / f"{namespace}.events", kubectl.events())
                for pod in kubectl.list("pod"):
                    name = pod["metadata"]["name"]
                    with suppress(E2EError):
                        _write(stage.logs / f"{name}.describe",
                               kubectl.call("describe", "pod", name).decode())  # fmt: skip
                        _write(stage.logs / f"{name}.log", kubectl.logs(name))
                        _write(stage.logs / f"{name}.previous.log",
                               kubectl.logs(name, previous=True))  # fmt: skip
            with suppress(E2EError):
                shown = run("kubectl", "-n", namespace, "get", "all,configmap,lease,pvc,penstock",
                            "-o", "yaml")  # fmt: skip
                _write(stage.logs / f"{namespace}.yaml", shown)
        say(f"  logs and events: {stage.logs.relative_to(ROOT)}")


def _result(one: Scenario, stage: Stage, seconds: float, error: str) -> Result:
    gaps = [verdict.write_gap_s for verdict in stage.verdicts]
    return Result(
        name=one.name,
        title=one.title,
        passed=not error,
        seconds=round(seconds, 1),
        write_gap_s=max(gaps, default=None),
        verdict="; ".join(map(str, stage.verdicts)) or "-",
        error=error,
        figures=stage.figures,
        workloads=[verdict.figures for verdict in stage.verdicts],
    )


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)
