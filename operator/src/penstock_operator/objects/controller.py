"""The controllers' objects: Deployment, Service, account with its permissions, NetworkPolicy.

Two replicas of a small Deployment; a Lease picks the active one. They may write ConfigMaps and
Leases of their namespace, and nothing else: a ClusterRole that is installed with the operator says
so, and is bound in the namespace. The operator may bind that one role, and write none.
"""

from penstock.core.manifest.containers import CONTROLLER
from penstock_operator.model import Object
from penstock_operator.names import CONTROLLER_PORT, METRICS_PORT
from penstock_operator.objects.desired import DesiredCluster
from penstock_operator.objects.pods import (
    TMP_MOUNT,
    TMP_VOLUME,
    config_arguments,
    container,
    meta,
    pod_spec,
    recorded,
)
from penstock_operator.objects.policies import controller_policy
from penstock_operator.objects.ports import controller_ports
from penstock_operator.objects.security import (
    AUTHORITY_MOUNT,
    authority_arguments,
    authority_volume,
    migration_arguments,
    oidc_environment,
)


def controller_objects(desired: DesiredCluster) -> list[Object]:
    """In the order in which they must exist."""
    names = desired.names
    selector = names.selector(CONTROLLER)
    return [
        *_account(desired),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta(desired, names.controllers, CONTROLLER),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": selector,
                "ports": [port.service for port in controller_ports(desired) if port.in_service],
            },
        },
        controller_policy(desired),
        deployment(desired),
    ]


def _account(desired: DesiredCluster) -> list[Object]:
    """The controllers' account and permissions."""
    names = desired.names
    rbac = "rbac.authorization.k8s.io"
    role = desired.installation.controller_role
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": meta(desired, names.controller, CONTROLLER),
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": meta(desired, names.controller_binding(role), CONTROLLER),
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [
                {
                    "kind": "ServiceAccount",
                    "name": names.controller,
                    "namespace": names.namespace,
                }
            ],
        },
    ]


def deployment(desired: DesiredCluster) -> Object:
    """Its strategy keeps the others while a new one does not start."""
    names = desired.names
    owner = [] if desired.keeps_data else [f"--owner-uid={desired.uid}"]
    args = [
        "controller",
        "--metadata=kubernetes",
        f"--cluster={names.cluster}",
        f"--namespace={names.namespace}",
        f"--listen=0.0.0.0:{CONTROLLER_PORT}",
        f"--metrics-listen=0.0.0.0:{METRICS_PORT}",
        f"--log-level={desired.log_level}",
        *owner,
        *migration_arguments(desired),
        *authority_arguments(desired),
        *config_arguments(desired.controller_settings),
    ]
    ports = controller_ports(desired)
    main = container(desired, CONTROLLER, args, ports, desired.controller_resources)
    main["env"] = [*main["env"], *oidc_environment(desired)]
    main["volumeMounts"] = [TMP_MOUNT]
    spec = pod_spec(desired, CONTROLLER, names.controller)
    spec["volumes"] = [TMP_VOLUME]
    if desired.has_tls:
        main["volumeMounts"].append(AUTHORITY_MOUNT)
        spec["volumes"].append(authority_volume(desired))
    spec["containers"] = [main]
    # A controller on a dead node must be replaced sooner than after five minutes.
    spec["tolerations"] = [
        *desired.tolerations,
        *(
            _leave_after(f"node.kubernetes.io/{taint}", 30)
            for taint in ("not-ready", "unreachable")
        ),
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": recorded(desired, names.controller, CONTROLLER),
        "spec": {
            "replicas": desired.controllers,
            "selector": {"matchLabels": names.selector(CONTROLLER)},
            "strategy": {
                "type": "RollingUpdate",
                # An image that does not start must not replace the standby.
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": {"metadata": {"labels": names.labels(CONTROLLER)}, "spec": spec},
        },
    }


def _leave_after(taint: str, seconds: int) -> Object:
    return {
        "key": taint,
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": seconds,
    }
