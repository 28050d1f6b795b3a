"""From plaintext to TLS and back: which mode is next, for brokers and for the rest.

    Disabled ◀── roll ──▶ Migrate ◀── roll ──▶ Strict
                              └─ only when nobody has called in plaintext for QUIET_MS

Brokers of neighbouring modes work together, others do not: a step waits until no broker is two
away. Controllers, Services and policies have the strongest mode of any broker that runs or will:
brokers with TLS need its ports, and the others still have theirs. What has begun to be Strict
becomes so whoever calls in plaintext later: half a cluster serves nobody well. Unknown is no.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.core.manifest.containers import BROKER
from penstock.core.manifest.objects import SecurityMode
from penstock_operator.model import Observed, PodState, Severity, Wait
from penstock_operator.names import SECURE_PORT, SKIP_PLAINTEXT_GATE
from penstock_operator.objects import DesiredCluster

QUIET_MS: Final = 600_000
"""Twice the time after which a client that is in use asks for metadata again."""
_HOSTS_SHOWN: Final = 5
_REASON: Final = "PlaintextClients"


@dataclass(frozen=True, slots=True)
class Stage:
    """`brokers`: what their pods are made from. `rest`: all other objects. `wait`: for what the
    next step waits. `is_known` False: nothing says which mode the rest has."""

    brokers: DesiredCluster
    rest: DesiredCluster
    wait: Wait | None = None
    is_known: bool = True


def called(desired: DesiredCluster, pods: Mapping[int, PodState]) -> DesiredCluster:
    """The same, and how all brokers that run can be called."""
    return replace(desired, called=SecurityMode.weakest(pod.mode for pod in pods.values()))


def staged(desired: DesiredCluster, observed: Observed) -> Stage:
    """The next step towards the spec's mode. While it cannot be read how far it is, none is
    taken."""
    if not observed.knows("Pod", "StatefulSet"):
        return _held(desired, observed)
    found = {pod.name: pod.mode for pod in observed.pods.values()}
    live = observed.live("StatefulSet", desired.names.broker)
    if not found and live is not None:
        # Without pods, as asleep, clients still are where the brokers were last.
        found = {desired.names.broker: SecurityMode.of_pod(live["spec"]["template"])}
    modes = {mode for mode in found.values() if mode is not None}
    nameless = sorted(name for name, mode in found.items() if mode is None)
    if nameless:
        return replace(_held(desired, observed), wait=_unknown(nameless))
    mode, wait = _next(desired, observed, modes)
    strongest = max({mode, *modes}, key=lambda each: each.strength)
    return Stage(replace(desired, staged=mode), replace(desired, staged=strongest), wait)


def _held(desired: DesiredCluster, observed: Observed) -> Stage:
    """As the live StatefulSet and Deployment have it; one that does not say so as the other."""
    brokers = observed.live("StatefulSet", desired.names.broker)
    controllers = observed.live("Deployment", desired.names.controller)
    mode = None if brokers is None else SecurityMode.of_pod(brokers["spec"]["template"])
    rest = (
        None if controllers is None else SecurityMode.of_controller(controllers["spec"]["template"])
    )
    both = replace(desired, staged=mode or rest), replace(desired, staged=rest)
    return Stage(*both, is_known=rest is not None)


def _unknown(pods: list[str]) -> Wait:
    text = (
        f"{pods[0]} has no container named {BROKER}, so its security mode is not known; the mode "
        "of the Cluster stays as it is: find what changes its pods (an admission webhook?)"
    )
    return Wait("SecurityModeUnknown", text, Severity.BLOCKED)


def _next(
    desired: DesiredCluster, observed: Observed, modes: set[SecurityMode]
) -> tuple[SecurityMode, Wait | None]:
    wanted = desired.spec.security
    if wanted is SecurityMode.STRICT and SecurityMode.DISABLED in modes:
        return SecurityMode.MIGRATE, None
    if wanted is SecurityMode.DISABLED and SecurityMode.STRICT in modes:
        return SecurityMode.MIGRATE, None
    starts = wanted is SecurityMode.STRICT and modes == {SecurityMode.MIGRATE}
    if starts and not desired.skip_plaintext_gate and not _has_begun(desired, observed):
        wait = _gate(desired, observed)
        return (wanted if wait is None else SecurityMode.MIGRATE), wait
    return wanted, None


def _has_begun(desired: DesiredCluster, observed: Observed) -> bool:
    """The gate was open: brokers that restart become Strict. The first of them cannot say for a
    while who calls it in plaintext, and no pod shows yet that it has begun."""
    live = observed.live("StatefulSet", desired.names.broker)
    return live is not None and SecurityMode.of_pod(live["spec"]["template"]) is SecurityMode.STRICT


def _gate(desired: DesiredCluster, observed: Observed) -> Wait | None:
    """None: nobody is known to use plaintext, and all brokers have watched for long enough."""
    skip = f"annotation {SKIP_PLAINTEXT_GATE}=true ends plaintext regardless"
    told = observed.plaintext
    if told is None or any(broker not in told for broker in range(desired.spec.brokers)):
        text = f"Strict waits until all brokers say who calls them in plaintext; {skip}"
        return Wait(_REASON, text)
    hosts = sorted(
        {host for one in told.values() for host, idle in one.idle_ms.items() if idle < QUIET_MS}
    )
    minutes = QUIET_MS // 60_000
    if hosts:
        shown = ", ".join(host or "others" for host in hosts[:_HOSTS_SHOWN])
        more = f" and {len(hosts) - _HOSTS_SHOWN} more" if len(hosts) > _HOSTS_SHOWN else ""
        text = (
            f"Strict waits for {len(hosts)} plaintext clients: {shown}{more}; they called in the "
            f"last {minutes} minutes; move them to port {SECURE_PORT} with TLS and tokens; {skip}"
        )
        return Wait(_REASON, text, Severity.BLOCKED)
    if any(one.watched_ms < QUIET_MS for one in told.values()):
        text = f"Strict waits until brokers have seen no plaintext client for {minutes} minutes"
        return Wait(_REASON, text)
    return None
