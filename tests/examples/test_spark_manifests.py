"""The manifests of examples/spark: what can be seen without a cluster.

Names, ports and images are those of the product; every pod, also those that Spark makes from
templates, may live in a namespace with the restricted Pod Security Standard.
"""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import penstock
from e2e.harness.images import SPARK
from e2e.harness.penstock import STREAMS
from e2e.scenarios.spark import manifests
from penstock.client.cluster.credentials import MOUNT
from penstock.spark import options as source

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/spark"
FILES = sorted((EXAMPLE / "kubernetes").glob("*.yaml"))
WORKLOADS = ("stream.yaml", "batch.yaml")
USER = 10001

Manifest = dict[str, Any]


def documents(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((EXAMPLE / "kubernetes" / name).read_text()))


def of_kind(name: str, kind: str) -> Manifest:
    found = [one for one in documents(name) if one["kind"] == kind]
    assert len(found) == 1, f"{name}: {len(found)} objects of kind {kind}"
    return found[0]


def workload(name: str) -> Manifest:
    return documents(name)[-1]


def defaults(name: str) -> dict[str, str]:
    lines = of_kind(name, "ConfigMap")["data"]["spark-defaults.conf"].splitlines()
    return dict(line.split(None, 1) for line in lines)


def templates(name: str) -> dict[str, Manifest]:
    data = of_kind(name, "ConfigMap")["data"]
    return {key: yaml.safe_load(text) for key, text in data.items() if key.endswith(".yaml")}


def pod_specs() -> list[Any]:
    found = []
    for name in WORKLOADS:
        found.append(pytest.param(workload(name)["spec"]["template"]["spec"], id=name))
        found += [pytest.param(one["spec"], id=f"{name}-{key}")
                  for key, one in templates(name).items()]  # fmt: skip
    return found


def test_there_are_the_three_files() -> None:
    assert [path.name for path in FILES] == ["batch.yaml", "rbac.yaml", "stream.yaml"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_object_says_its_namespace(path: Path) -> None:
    for one in documents(path.name):
        assert one["metadata"]["namespace"] == STREAMS, one["metadata"]


@pytest.mark.parametrize("spec", pod_specs())
def test_pods_fit_the_restricted_standard(spec: Manifest) -> None:
    pod = spec["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] == pod["runAsGroup"] == USER
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"emptyDir", "configMap", "persistentVolumeClaim", "projected"}


@pytest.mark.parametrize("spec", pod_specs())
def test_what_a_read_only_root_needs_is_mounted(spec: Manifest) -> None:
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for container in spec["containers"]:
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert "emptyDir" in volumes[mounts["/tmp"]]
        assert set(mounts.values()) <= set(volumes)


@pytest.mark.parametrize("name", WORKLOADS)
def test_one_image_is_named_and_it_is_this_version(name: str) -> None:
    wanted = f"penstock-spark:{penstock.__version__}"
    container = workload(name)["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == wanted
    assert defaults(name)["spark.kubernetes.container.image"] == wanted
    text = (EXAMPLE / "kubernetes" / name).read_text()
    assert set(re.findall(r"penstock-spark:\S+", text)) == {wanted}


@pytest.mark.parametrize("name", WORKLOADS)
def test_settings_point_to_what_is_there(name: str) -> None:
    settings = defaults(name)
    assert settings["spark.kubernetes.namespace"] == STREAMS
    spec = workload(name)["spec"]["template"]["spec"]
    mounted = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    folder = mounted["spark"]
    environment = {each["name"]: each.get("value", "") for each in spec["containers"][0]["env"]}
    assert environment["SPARK_CONF_DIR"] == folder
    files = {value for key, value in settings.items() if key.endswith("podTemplateFile")}
    assert files == {f"{folder}/{key}" for key in templates(name)}
    account = of_kind("rbac.yaml", "ServiceAccount")["metadata"]["name"]
    assert spec["serviceAccountName"] == account


def test_the_stream_is_one_driver_at_a_time_with_its_own_ports() -> None:
    deployment = workload("stream.yaml")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    settings = defaults("stream.yaml")
    assert ports["driver"] == settings["spark.driver.port"]
    assert ports["blocks"] == settings["spark.driver.blockManager.port"]


def test_the_streams_executors_see_the_drivers_directory() -> None:
    executor = templates("stream.yaml")["executor.yaml"]["spec"]
    driver = workload("stream.yaml")["spec"]["template"]["spec"]
    for spec in (executor, driver):
        claims = {v["name"]: v.get("persistentVolumeClaim") for v in spec["volumes"]}
        mounts = {m["mountPath"]: m["name"] for m in spec["containers"][0]["volumeMounts"]}
        assert claims[mounts["/work"]] == {"claimName": "totals-stream"}
    beside = executor["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = workload("stream.yaml")["spec"]["template"]["metadata"]["labels"]
    assert beside[0]["labelSelector"]["matchLabels"].items() <= labels.items()


def test_only_drivers_have_a_token_for_the_api_server() -> None:
    for name in WORKLOADS:
        executor = templates(name)["executor.yaml"]["spec"]
        assert executor["automountServiceAccountToken"] is False


def test_drivers_and_executors_are_let_in_by_a_strict_cluster() -> None:
    pods = [each["spec"] for name in WORKLOADS for each in templates(name).values()]
    pods.append(workload("stream.yaml")["spec"]["template"]["spec"])
    for spec in pods:
        (volume,) = [each["projected"] for each in spec["volumes"] if "projected" in each]
        token, trust = volume["sources"]
        assert token["serviceAccountToken"]["audience"] == f"penstock.{STREAMS}.flights"
        assert trust["configMap"] == {"name": "flights-trust", "optional": True}
        mounts = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
        assert mounts["penstock"] == str(MOUNT)
        assert spec.get("serviceAccountName", "spark") == "spark"


def test_the_role_names_no_wildcard_and_no_secrets() -> None:
    for rule in of_kind("rbac.yaml", "Role")["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "secrets" not in rule["resources"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_scenarios_change_image_and_topic_only(name: str) -> None:
    text = json.dumps(manifests(name, "another"))
    assert SPARK.tag in text
    assert penstock.__version__ not in text
    assert "--topic=another" in text


# ---------------------------------------------------------------------- the job's own arguments


@pytest.fixture(scope="module")
def job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_totals", EXAMPLE / "totals.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_job_takes_the_arguments_of_the_manifests(job: ModuleType, name: str) -> None:
    args = workload(name)["spec"]["template"]["spec"]["containers"][0]["args"]
    script = next(place for place, arg in enumerate(args) if arg.endswith("/totals.py"))
    parsed = job.parse(args[script + 1 :])
    assert parsed.mode == name.removesuffix(".yaml")
    options = job.source_options(parsed)
    source.parse(options)
    assert options["penstock.bootstrap.servers"] == f"flights-bootstrap.{STREAMS}.svc:9092"
    assert args[script].removeprefix("local://") == "/opt/penstock/totals.py"
    assert "/opt/penstock/totals.py" in (EXAMPLE / "Dockerfile").read_text()


def test_totals_take_the_newest_numbers_of_a_key_and_survive_a_restart(
    job: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "totals.json"
    totals = job.Totals(file)
    first = [
        {"key": "a", "records": 2, "sum": 5, "distinct": 2},
        {"key": None, "records": 1, "sum": 7, "distinct": 1},
    ]
    totals.merge(first)
    totals.merge(first)
    totals.merge([{"key": "a", "records": 3, "sum": 9, "distinct": 2}])
    wanted = {"records": 4, "sum": 16, "keys": 2, "distinct": 3}
    assert totals.line() == wanted
    assert job.Totals(file).line() == wanted


def test_a_stream_without_a_directory_is_one_clear_error() -> None:
    ended = subprocess.run(
        [sys.executable, EXAMPLE / "totals.py", "stream", "--bootstrap=x:1", "--topic=t"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].endswith("stream needs --work DIR")
