"""What all our pods have in common: restricted, bounded, probed without asking other processes.

Probes are gRPC health calls to the pod itself, to a port of their own if the image is known to have
it: one that does not would be restarted for ever. Liveness asks a name that is SERVING for as long
as the process handles calls; readiness asks whether it serves. Neither depends on peers, the
controller or the API server (guarantees §4.6).
"""

import hashlib
import json
from typing import Final

from penstock_operator.model import Object
from penstock_operator.names import MADE_FROM
from penstock_operator.objects.desired import DesiredCluster
from penstock_operator.objects.ports import HEALTH, Port, environment

UID: Final = 10_001
LIVENESS_SERVICE: Final = "penstock.liveness"
HOSTNAME_KEY: Final = "kubernetes.io/hostname"

POD_SECURITY: Final[Object] = {
    "runAsNonRoot": True,
    "runAsUser": UID,
    "runAsGroup": UID,
    "fsGroup": UID,
    # Kubernetes must not walk a volume of a million files at each start.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Object] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
TMP_VOLUME: Final[Object] = {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}}
"""Nothing of ours needs it for long; without a limit a pod could fill its node's disk."""
TMP_MOUNT: Final[Object] = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - a mount of its own


def fingerprint(value: object) -> str:
    """Sixteen hexadecimal digits that change when the value does."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def container(
    desired: DesiredCluster,
    name: str,
    args: list[str],
    ports: tuple[Port, ...],
    resources: Object,
) -> Object:
    """A container of the broker image; the caller adds volumes. The first of `ports` is gRPC's."""
    probed = HEALTH.number if desired.probes_apart else ports[0].number
    return {
        "name": name,
        "image": desired.image,
        "imagePullPolicy": desired.pull_policy,
        "args": args,
        "ports": [port.container for port in ports],
        "env": environment(desired, ports),
        "resources": resources,
        "securityContext": CONTAINER_SECURITY,
        # The last lines of the log say why a process refused to start; the status shows them.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": _probe(probed, LIVENESS_SERVICE, period=1, failures=600),
        "livenessProbe": _probe(probed, LIVENESS_SERVICE, period=10, failures=6),
        "readinessProbe": _probe(probed, "", period=2, failures=2),
    }


def _probe(port: int, service: str, *, period: int, failures: int) -> Object:
    return {
        "grpc": {"port": port, "service": service},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
        "successThreshold": 1,
    }


def pod_spec(desired: DesiredCluster, component: str, account: str) -> Object:
    """The pod around the container; spread over nodes where there are enough."""
    apart = {
        "weight": 100,
        "podAffinityTerm": {
            "labelSelector": {"matchLabels": desired.names.selector(component)},
            "topologyKey": HOSTNAME_KEY,
        },
    }
    spec: Object = {
        "serviceAccountName": account,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "terminationGracePeriodSeconds": 30,
        "affinity": {
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]}
        },
    }
    if desired.installation.pull_secrets:
        names = desired.installation.pull_secrets
        spec["imagePullSecrets"] = [{"name": name} for name in names]
    if desired.node_selector:
        spec["nodeSelector"] = desired.node_selector
    if desired.tolerations:
        spec["tolerations"] = list(desired.tolerations)
    return spec


def config_arguments(settings: dict[str, str]) -> list[str]:
    """`--config=key=value` for every setting, in a fixed order."""
    return [f"--config={key}={settings[key]}" for key in sorted(settings)]


def recorded(desired: DesiredCluster, name: str, component: str) -> Object:
    """Metadata of an owned object that says which spec it was made from, see `sections`."""
    found = meta(desired, name, component)
    return {**found, "annotations": {MADE_FROM: desired.record}} if desired.record else found


def meta(desired: DesiredCluster, name: str, component: str | None = None) -> Object:
    """Metadata of an owned object."""
    return {
        "name": name,
        "namespace": desired.names.namespace,
        "labels": desired.names.labels(component),
        "ownerReferences": [desired.owner()],
    }
