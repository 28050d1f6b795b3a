"""kubectl with types: every call has a deadline, every failure is one line.

A `Kubectl` is bound to a namespace (`in_namespace` gives another one). Manifests are plain
dictionaries, texts or files; objects come back as the dictionaries the API server sent. It is
kubectl and not a client library, because that is what users have, and what the documentation shows.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from e2e.harness.process import POLL_S, Command, CommandError, E2EError, run_bytes, wait_until

Manifest = dict[str, Any]
NOT_BEGUN: Final = "unable to upgrade connection"
KUBELET_S: Final = 60.0


class NotFoundError(CommandError):
    """The API server says that there is no such object."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl in one namespace. `timeout_s` bounds each call, also while the API server hangs."""

    namespace: str = "default"
    timeout_s: float = 30.0

    def in_namespace(self, namespace: str) -> "Kubectl":
        return replace(self, namespace=namespace)

    def call(self, *args: str, stdin: bytes | None = None, timeout_s: float | None = None) -> bytes:
        """Any kubectl command. Raises NotFoundError or CommandError."""
        limit = timeout_s or self.timeout_s
        try:
            return run_bytes(
                Command(("kubectl", "-n", self.namespace, *args), stdin, timeout_s=limit)
            )
        except CommandError as error:
            if "(NotFound)" in error.output:
                raise NotFoundError(str(error), error.output) from None
            raise

    def apply(self, manifest: Manifest | Sequence[Manifest] | str | Path) -> None:
        """Creates or changes objects, by server-side apply."""
        match manifest:
            case Path():
                text = manifest.read_text()
            case str():
                text = manifest
            case dict():
                text = json.dumps(manifest)
            case _:
                text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifest)})
        self.call(
            "apply", "--server-side", "--force-conflicts", "--field-manager=e2e", "-f", "-",
            stdin=text.encode(),
        )  # fmt: skip

    def get(self, kind: str, name: str) -> Manifest:
        """One object. Raises NotFoundError."""
        found: Manifest = json.loads(self.call("get", kind, name, "-o", "json"))
        return found

    def find(self, kind: str, name: str) -> Manifest | None:
        """One object, or None if it is not there."""
        try:
            return self.get(kind, name)
        except NotFoundError:
            return None

    def list(self, kind: str, selector: str = "", *, everywhere: bool = False) -> list[Manifest]:
        """All objects of a kind that a label selector chooses."""
        where = ["-A"] if everywhere else []
        chosen = ["-l", selector] if selector else []
        items: list[Manifest] = json.loads(self.call("get", kind, *where, *chosen, "-o", "json"))[
            "items"
        ]
        return items

    def wait(
        self, kind: str, name: str, condition: Callable[[Manifest], bool], deadline_s: float = 60.0
    ) -> Manifest:
        """The object as soon as `condition` holds for it; it need not exist before."""

        def matching() -> Manifest | None:
            found = self.find(kind, name)
            return found if found is not None and condition(found) else None

        found = wait_until(f"{kind} {name} as wanted", matching, deadline_s)
        assert found is not None
        return found

    def wait_condition(
        self, kind: str, name: str, condition: str = "Ready", deadline_s: float = 60.0
    ) -> Manifest:
        """Waits for a status condition that is True for the present generation."""
        last = ""

        def holds() -> Manifest | None:
            nonlocal last
            found = self.find(kind, name)
            last = describe_condition(found, condition)
            return found if found is not None and last == "True" else None

        try:
            found = wait_until(f"{kind} {name} {condition}", holds, deadline_s)
        except E2EError as error:
            raise E2EError(f"{error}; it says: {last}") from None
        assert found is not None
        return found

    def delete(
        self, kind: str, *names: str, now: bool = False, wait_s: float | None = 60.0
    ) -> None:
        """Deletes objects; those that are not there are no failure.

        `now`: without grace, as when a node is lost. `wait_s` None does not wait for them to go.
        """
        grace = ["--grace-period=0", "--force"] if now else []
        waiting = ["--wait=false"] if wait_s is None else [f"--timeout={wait_s:.0f}s"]
        self.call(
            "delete", kind, *names, "--ignore-not-found", *grace, *waiting,
            timeout_s=(wait_s or 0) + self.timeout_s,
        )  # fmt: skip

    def delete_labelled(self, group: str, kind: str, label: str) -> None:
        """Asks in one request that all objects with a label go; does not wait until they are gone.

        kubectl itself deletes named objects one after the other: 200 took over a minute. `group` as
        in "apis/penstock.dev/v1alpha1", `kind` in the plural.
        """
        where = f"{group}/namespaces/{self.namespace}/{kind}"
        self.call("delete", "--raw", f"/{where}?labelSelector={quote(label)}")

    def patch(self, kind: str, name: str, patch: Mapping[str, Any], *options: str) -> None:
        """A merge patch; `options` may name `--subresource=status`."""
        self.call("patch", kind, name, "--type=merge", "-p", json.dumps(patch), *options)

    def exec(self, pod: str, *command: str, timeout_s: float | None = None) -> str:
        """Runs a command in a pod's first container and returns what it printed."""
        return self.exec_bytes(pod, *command, timeout_s=timeout_s).decode(errors="replace")

    def exec_bytes(self, pod: str, *command: str, timeout_s: float | None = None) -> bytes:
        """As `exec`, as bytes.

        A kubelet that was without an API server may first have to learn of its pods again. It
        refuses before anything runs, so that asking once more does nothing twice.
        """
        end = time.monotonic() + KUBELET_S
        while True:
            try:
                return self.call("exec", pod, "--", *command, timeout_s=timeout_s)
            except CommandError as error:
                if NOT_BEGUN not in error.output or time.monotonic() > end:
                    raise
            time.sleep(POLL_S)

    def logs(self, pod: str, *, previous: bool = False, lines: int = 2_000) -> str:
        """The end of the logs of all containers of a pod."""
        before = ["--previous"] if previous else []
        return self.call(
            "logs", pod, "--all-containers", "--prefix", f"--tail={lines}", *before
        ).decode(errors="replace")

    def events(self) -> str:
        """The namespace's events, oldest first."""
        return self.call("get", "events", "--sort-by=.lastTimestamp", "-o", "wide").decode()


def describe_condition(found: Manifest | None, condition: str) -> str:
    """'True' if it holds for the present generation, otherwise what is known, in words."""
    if found is None:
        return "no such object"
    generation = found["metadata"].get("generation", 0)
    for each in found.get("status", {}).get("conditions", []):
        if each["type"] == condition:
            seen = each.get("observedGeneration", generation)
            if each["status"] == "True" and seen == generation:
                return "True"
            old = "" if seen == generation else f" (of generation {seen}, now {generation})"
            return f"{each['status']}, {each.get('reason', '')}: {each.get('message', '')}{old}"
    return f"no condition {condition}"
