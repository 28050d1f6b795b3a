"""The brokers' objects: StatefulSet, Services, PodDisruptionBudget, account, NetworkPolicy.

The StatefulSet updates `OnDelete`: a pod gets its new template when the operator deletes it, and
`plan.roll` decides when that is safe. Its template carries its own fingerprint, so that an
annotation of a pod tells from which template it was created.
"""

from typing import Final

from penstock.core.manifest.containers import BROKER
from penstock.core.manifest.objects import SecurityMode
from penstock.kubernetes.names import COMPONENT_LABEL
from penstock_operator.model import Object
from penstock_operator.names import (
    EXTERNAL_PORT,
    GRPC_PORT,
    METRICS_PORT,
    POD_INDEX,
    RACK,
    TEMPLATE_HASH,
)
from penstock_operator.objects.desired import DesiredCluster
from penstock_operator.objects.pods import (
    TMP_MOUNT,
    TMP_VOLUME,
    config_arguments,
    container,
    fingerprint,
    meta,
    pod_spec,
    recorded,
)
from penstock_operator.objects.policies import broker_policy
from penstock_operator.objects.ports import (
    CLIENT,
    EXTERNAL,
    SECURE,
    Port,
    broker_ports,
    certificate_ports,
)
from penstock_operator.objects.security import (
    ENROLMENT_MOUNT,
    USERS_CA_MOUNT,
    accounts,
    enrolment_arguments,
    enrolment_volume,
    migration_arguments,
    users_ca_environment,
    users_ca_volume,
)

DATA_PATH: Final = "/var/lib/penstock"
INFO_PATH: Final = "/etc/penstock/pod"


def broker_objects(desired: DesiredCluster, brokers: int | None = None) -> list[Object]:
    """All but the StatefulSet; applying them restarts nothing.

    `brokers`: how many there are, or shall be; None: as many as the spec wants.
    """
    names = desired.names
    selector = names.selector(BROKER)
    ports = [port.service for port in broker_ports(desired) if port.in_service]
    secure = (SECURE,) if desired.has_tls else ()
    clients = [port.service for port in (CLIENT, *secure, *certificate_ports(desired))]
    objects: list[Object] = [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": meta(desired, names.broker, BROKER),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta(desired, names.brokers, BROKER),
            "spec": {
                "clusterIP": "None",
                # Brokers must find each other before they are ready.
                "publishNotReadyAddresses": True,
                "selector": selector,
                "ports": ports,
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta(desired, names.bootstrap, BROKER),
            "spec": {
                "type": "ClusterIP",
                "selector": selector,
                "ports": clients,
            },
        },
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": meta(desired, names.broker, BROKER),
            "spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": selector},
                # A broken broker must not prevent its node from being drained.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        },
        broker_policy(desired),
        *accounts(desired),
    ]
    if desired.external is not None:
        objects += _external_services(desired, desired.spec.brokers if brokers is None else brokers)
    return objects


def _external_services(desired: DesiredCluster, brokers: int) -> list[Object]:
    each = (_external_service(desired, broker_id) for broker_id in range(brokers))
    return [_external_bootstrap(desired), *each]


def _external_service(desired: DesiredCluster, broker_id: int) -> Object:
    """One broker's NodePort; external clients learn it from that broker's Metadata answers."""
    assert desired.external is not None
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta(desired, desired.names.external(broker_id), BROKER),
        "spec": {
            "type": "NodePort",
            # The node in the address must be the node that answers.
            "externalTrafficPolicy": "Local" if not desired.external.host else "Cluster",
            "publishNotReadyAddresses": True,
            "selector": {**desired.names.selector(BROKER), POD_INDEX: str(broker_id)},
            "ports": _node_ports(desired, 1 + broker_id),
        },
    }


def _external_bootstrap(desired: DesiredCluster) -> Object:
    """Where external clients connect first: any ready broker."""
    assert desired.external is not None
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta(desired, desired.names.external_bootstrap, BROKER),
        "spec": {
            "type": "NodePort",
            "selector": desired.names.selector(BROKER),
            "ports": _node_ports(desired, 0),
        },
    }


def broker_set(desired: DesiredCluster, replicas: int) -> Object:
    """The StatefulSet with `replicas` pods, which scaling may keep above or below the spec's."""
    names = desired.names
    template = _template(desired)
    claim: Object = {
        "metadata": {"name": "data", "labels": names.lasting_labels(BROKER)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": desired.spec.storage_size}},
        },
    }
    if desired.storage_class:
        claim["spec"]["storageClassName"] = desired.storage_class
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": recorded(desired, names.broker, BROKER),
        "spec": {
            "replicas": replicas,
            "serviceName": names.brokers,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": names.selector(BROKER)},
            # Claims go with the Cluster, never with a StatefulSet that somebody deletes alone.
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain",
                "whenScaled": "Retain",
            },
            "template": template,
            "volumeClaimTemplates": [claim],
        },
    }


def template_hash(desired: DesiredCluster) -> str:
    """The hash that a pod of the newest template carries."""
    annotations: dict[str, str] = _template(desired)["metadata"]["annotations"]
    return annotations[TEMPLATE_HASH]


def live_template_hash(live: Object) -> str:
    """The hash that a pod of a live StatefulSet's template carries; empty: it is not ours."""
    annotations: dict[str, str] = live["spec"]["template"]["metadata"].get("annotations") or {}
    return annotations.get(TEMPLATE_HASH, "")


def _template(desired: DesiredCluster) -> Object:
    names = desired.names
    args = [
        "broker",
        "--broker-id=$(BROKER_ID)",
        f"--data-dir={DATA_PATH}/data",
        f"--listen=0.0.0.0:{GRPC_PORT}",
        f"--advertise={names.broker_host('$(BROKER_ID)')}:{GRPC_PORT}",
        f"--controllers={_controllers(desired)}",
        f"--metrics-listen=0.0.0.0:{METRICS_PORT}",
        f"--log-level={desired.log_level}",
        *_rack_arguments(desired),
        *_external_arguments(desired),
        *migration_arguments(desired),
        *enrolment_arguments(desired),
        *config_arguments(desired.broker_settings),
    ]
    main = container(desired, BROKER, args, broker_ports(desired), desired.resources)
    main["env"] = [
        {
            "name": "BROKER_ID",
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{POD_INDEX}']"}},
        },
        {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        *main["env"],
    ]
    main["volumeMounts"] = [{"name": "data", "mountPath": DATA_PATH}, TMP_MOUNT]
    spec = pod_spec(desired, BROKER, names.broker)
    spec["volumes"] = [TMP_VOLUME]
    if desired.has_tls:
        main["volumeMounts"].append(ENROLMENT_MOUNT)
        spec["volumes"].append(enrolment_volume(desired))
    if desired.client_certificates is not None:
        main["env"] += users_ca_environment(desired.client_certificates)
        main["volumeMounts"].append(USERS_CA_MOUNT)
        spec["volumes"].append(users_ca_volume(desired.client_certificates))
    if desired.spec.rack_topology_key:
        main["volumeMounts"].append({"name": "pod", "mountPath": INFO_PATH})
        field = {"fieldPath": f"metadata.annotations['{RACK}']"}
        items = [{"path": "rack", "fieldRef": field}]
        spec["volumes"].append({"name": "pod", "downwardAPI": {"items": items}})
        spec["topologySpreadConstraints"] = [_spread(desired)]
    spec["automountServiceAccountToken"] = False
    spec["containers"] = [main]
    metadata: Object = {"labels": names.labels(BROKER)}
    metadata["annotations"] = {TEMPLATE_HASH: fingerprint([metadata, spec])}
    return {"metadata": metadata, "spec": spec}


def _controllers(desired: DesiredCluster) -> str:
    """Over TLS as soon as there is some."""
    names = desired.names
    if desired.mode is SecurityMode.MIGRATE:
        return names.secure_controllers_address
    return names.controllers_address


def _rack_arguments(desired: DesiredCluster) -> list[str]:
    return [f"--rack-file={INFO_PATH}/rack"] if desired.spec.rack_topology_key else []


def _external_arguments(desired: DesiredCluster) -> list[str]:
    """`--external-advertise` is broker 0's: NodePorts are consecutive."""
    external = desired.external
    if external is None:
        return []
    host = external.host or "$(NODE_IP)"
    return [
        f"--external-listen=0.0.0.0:{EXTERNAL_PORT}",
        f"--external-advertise={host}:{external.node_port + 1}",
    ]


def _spread(desired: DesiredCluster) -> Object:
    return {
        "maxSkew": 1,
        "topologyKey": desired.spec.rack_topology_key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": desired.names.selector(BROKER)},
    }


def _node_ports(desired: DesiredCluster, offset: int) -> list[Object]:
    """Of an external Service: for tokens, perhaps for certificates."""
    assert desired.external is not None, "there are external Services"

    def on_nodes(port: Port, name: str, first: int) -> Object:
        return {**port.service, "name": name, "nodePort": first + offset}

    ports = [on_nodes(EXTERNAL, "grpc", desired.external.node_port)]
    given = desired.client_certificates
    if given is not None and given.node_port:
        ports += [on_nodes(each, each.name, given.node_port) for each in certificate_ports(desired)]
    return ports


__all__ = [
    "COMPONENT_LABEL",
    "broker_objects",
    "broker_set",
    "live_template_hash",
    "template_hash",
]
