"""From nothing to a cluster that takes records."""

import time

from e2e.harness.api_server import Write
from e2e.harness.penstock import OPERATOR_NAMESPACE, OPERATOR_SELECTOR, STREAMS
from e2e.harness.process import wait_until
from e2e.harness.scenario import Stage, scenario

WATCHED = (
    "clusters.penstock.dev,topics.penstock.dev,consumergroups.penstock.dev,statefulset,deployment,"
    "service,configmap,pod,pvc,poddisruptionbudget,role,rolebinding,serviceaccount,networkpolicy,"
    "event"
)
OURS = {
    "": {"configmaps", "persistentvolumeclaims", "pods", "secrets", "serviceaccounts", "services"},
    "apps": {"deployments", "statefulsets"},
    "networking.k8s.io": {"networkpolicies"},
    "policy": {"poddisruptionbudgets"},
    "rbac.authorization.k8s.io": {"rolebindings", "roles"},
}
"""What Penstock writes besides its own kinds and Leases, by API group. Kubernetes writes some of it
too, which counts as well. Events are not counted: they are watched as objects."""
KUBELET_WRITES = {("pods", "status"), ("serviceaccounts", "token")}
REST_S = 60.0
TICKS_PER_S = 100


@scenario("Installed from scratch", fresh=True, short=True)
def install(stage: Stage) -> None:
    """Chart, operator, the example's Cluster; then a short load, to see that Ready is true."""
    stage.penstock.remove()
    began = time.monotonic()
    stage.penstock.install(stage.images)
    stage.measure("operator available", time.monotonic() - began)
    began = time.monotonic()
    stage.penstock.create()
    stage.measure("Cluster Ready", time.monotonic() - began, limit=60.0)
    with stage.workload() as load:
        load.started()
        stage.measure("first records acknowledged", time.monotonic() - began)
        load.goes_on()


@scenario("At rest only Leases change, and the operator costs next to nothing")
def at_rest(stage: Stage) -> None:
    """A quiet minute: no object has another version, and the API server was not even asked for a
    change. (One that changes nothing keeps the version; its own counters tell of it.)"""
    kubectl = stage.penstock.operator
    pods = [pod["metadata"]["name"] for pod in kubectl.list("pod", OPERATOR_SELECTOR)]
    before, spent = versions(stage), {pod: cpu_s(stage, pod) for pod in pods}
    asked, began = stage.api_server.writes(), time.monotonic()
    wait_until("a quiet minute", lambda: time.monotonic() - began > REST_S, 2 * REST_S)
    took, asked = time.monotonic() - began, stage.api_server.writes() - asked
    after = versions(stage)
    changed = sorted(name for name in before | after if before.get(name) != after.get(name))
    stage.expect(not changed, f"changed at rest: {changed}")
    stage.measure("objects that changed, besides Leases", len(changed), "per minute", limit=0)
    ours = {write: count for write, count in asked.items() if is_ours(write)}
    for write, count in asked.items():
        stage.say(f"{'ours' if write in ours else 'not ours'}: {count} × {write}")
    stage.measure("API writes, besides Leases", sum(ours.values()), "per minute", limit=0)
    for place, pod in enumerate(pods, 1):
        used = 100.0 * (cpu_s(stage, pod) - spent[pod]) / took
        stage.measure(f"CPU of operator {place} of {len(pods)}", used, "% of a core", limit=1.0)
        stage.measure(f"memory of operator {place}", resident_mb(stage, pod), "MB", limit=150.0)


def is_ours(write: Write) -> bool:
    """Whether Penstock may have asked for it, and it is no Lease."""
    if write.group == "penstock.dev":
        return True
    return (
        write.resource in OURS.get(write.group, ())
        and (write.resource, write.subresource) not in KUBELET_WRITES
    )


def versions(stage: Stage) -> dict[str, str]:
    """The version of every object that belongs to a cluster of ours, Leases and nodes apart."""
    found: dict[str, str] = {}
    for each in stage.kubectl.list(WATCHED, everywhere=True):
        meta = each["metadata"]
        if meta["namespace"] in (OPERATOR_NAMESPACE, STREAMS):
            found[f"{each['kind']}/{meta['name']}"] = meta["resourceVersion"]
    return found


def cpu_s(stage: Stage, pod: str) -> float:
    """Processor time that a pod's processes have used."""
    place = stage.nodes.place(pod, stage.penstock.operator)
    files = " ".join(f"/proc/{number}/stat" for number in stage.nodes.processes(place))
    lines = stage.nodes.shell(place.node, f"cat {files}").splitlines()
    ticks = [line.rpartition(") ")[2].split()[11:13] for line in lines]
    return sum(int(each) for pair in ticks for each in pair) / TICKS_PER_S


def resident_mb(stage: Stage, pod: str) -> float:
    """Resident memory of a pod's processes."""
    place = stage.nodes.place(pod, stage.penstock.operator)
    files = " ".join(f"/proc/{number}/status" for number in stage.nodes.processes(place))
    lines = stage.nodes.shell(place.node, f"grep -h VmRSS {files}").splitlines()
    return sum(int(line.split()[1]) for line in lines) / 1000
