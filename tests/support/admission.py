"""The chart's admission policies, in force in namespaces of a test."""

import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from support.apiserver import ApiServer
from support.waiting import wait_until

OPERATOR: Final = "system:serviceaccount:penstock-system:streams-operator"
"""The operator's account in that installation of the chart."""
_GOLDEN: Final = Path(__file__).parents[1] / "charts" / "golden" / "namespaces.yaml"
_INSTALLED: Final = "penstock-operator-penstock-system"
_PATH: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"


@contextmanager
def in_force(
    server: ApiServer, name: str, namespace: str, refuses: Callable[[], object]
) -> Iterator[None]:
    """A policy of the chart, by the ending of its name, bound to one namespace.

    `refuses`: true as soon as the policy is in force; nothing says so otherwise.
    """
    own = f"{namespace}{name}"
    made = []
    for kind, plural in (("", "ies"), ("Binding", "ybindings")):
        body = _chart(f"ValidatingAdmissionPolicy{kind}", name)
        body["metadata"] = {"name": own}
        if kind:
            body["spec"]["policyName"] = own
            for matched in body["spec"].get("matchResources", {}).values():
                matched["matchExpressions"][0]["values"] = [namespace]
        server.request("POST", f"{_PATH}{plural}", body)
        made.append(f"{_PATH}{plural}/{own}")
    try:
        wait_until(refuses, what="the policy is in force")
        yield
    finally:
        for path in reversed(made):
            server.request("DELETE", path)


def _chart(kind: str, name: str) -> dict[str, Any]:
    """An object of the chart, as it is installed."""
    documents = yaml.safe_load_all(_GOLDEN.read_text())
    wanted = (kind, f"{_INSTALLED}{name}")
    (found,) = [
        each for each in documents if each and (each["kind"], each["metadata"]["name"]) == wanted
    ]
    return dict(found)


def refusal(call: Callable[[], object]) -> str:
    """Why the API server forbids it; "": it does not."""
    try:
        call()
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 403:
                raise
            return error.read().decode()
    return ""
