"""What the images are made of is pinned with hashes, and written down."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.sbom import LISTING, sbom

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {
    "requirements.lock": (
        "arrow",
        "avro",
        "broker",
        "cli",
        "compression",
        "kafka",
        "operator",
        "spark",
        "ui",
        "verify",
    ),
    "broker_image/requirements.lock": ("broker", "cli"),
    "operator/requirements.lock": ("operator",),
    "examples/spark/requirements.lock": ("spark",),
    "tools/build-requirements.lock": (),
}
DOCKERFILES = ("broker_image/Dockerfile", "operator/Dockerfile", "examples/spark/Dockerfile")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pinned(name: str) -> dict[str, str]:
    """Version by package; every package must have hashes."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            match = re.match(r"([a-z0-9.-]+)(?:\[.*?\])?==([^\s;]+)", line)
            assert match, f"{name}: {line[:60]!r} is not pinned"
            assert "--hash=sha256:" in line, f"{name}: {match[1]} has no hash"
            found[match[1]] = match[2]
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_is_pinned_with_hashes_and_without_an_address(name: str) -> None:
    assert pinned(name)
    assert "://" not in (ROOT / name).read_text()


@pytest.mark.parametrize(("name", "extras"), LOCKS.items())
def test_a_list_has_what_the_project_asks_for_in_the_versions_that_are_tested(
    name: str, extras: tuple[str, ...]
) -> None:
    wanted = [each for extra in extras for each in PROJECT["optional-dependencies"][extra]]
    wanted += PROJECT["dependencies"] if extras else []
    names = {re.split(r"[<>=!~\[ ]", each)[0].lower().replace("_", "-") for each in wanted}
    found = pinned(name)
    assert names <= found.keys(), f"run make lock: {sorted(names - found.keys())}"
    tested = pinned("requirements.lock") | pinned("tools/build-requirements.lock")
    assert {each: tested.get(each) for each in found} == found, "run make lock"


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_install_nothing_without_a_hash(dockerfile: str) -> None:
    text = (ROOT / dockerfile).read_text()
    assert re.search(r"^ARG BASE=", text, re.MULTILINE), "the base can be given by digest"
    for install in re.findall(r"pip (?:--python \S+ )?install[^\n&]*", text):
        assert "--require-hashes" in install or "penstock-*.whl" in install, install


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_say_what_they_are(dockerfile: str) -> None:
    text = (ROOT / dockerfile).read_text().rpartition("\nFROM ")[2]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', text))
    assert labels.keys() == {
        "title", "description", "url", "documentation", "source", "licenses", "version", "revision",
    }  # fmt: skip
    assert labels["licenses"] == PROJECT["license"]
    assert labels["url"] == PROJECT["urls"]["Homepage"]
    assert labels["source"] == PROJECT["urls"]["Source"]
    assert (labels["version"], labels["revision"]) == ("${VERSION}", "${REVISION}")


def test_a_bill_of_materials_names_what_is_installed() -> None:
    listed = subprocess.run(
        [sys.executable, "-c", LISTING], capture_output=True, text=True, check=True
    ).stdout
    bill = json.loads(sbom("penstock-broker", listed))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "penstock-broker"
    purls = {each["purl"] for each in bill["components"]}
    assert f"pkg:pypi/grpcio@{pinned('requirements.lock')['grpcio']}" in purls
    assert any(each.startswith("pkg:generic/python@3.") for each in purls)


def test_debian_packages_are_in_it() -> None:
    listing = {
        "python": "3.12.1",
        "packages": [{"name": "Zope_Interface", "version": "1", "license": "MIT"}],
        "debian": [["libc6", "2.36-9+deb12u10", "amd64"]],
    }
    bill = json.loads(sbom("x", json.dumps(listing)))
    by_name = {each["name"]: each for each in bill["components"]}
    assert by_name["libc6"]["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64"
    assert by_name["zope-interface"]["licenses"] == [{"license": {"id": "MIT"}}]
