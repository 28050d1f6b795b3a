"""What an image is made of, as CycloneDX 1.6 JSON: Python packages and, on Debian, its packages.

    the image's own interpreter lists both ─▶ components, by package URL ─▶ build/sbom/NAME.json

`make images` writes one for each image it builds. A scanner such as grype or Trivy reads them.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

LISTING: Final = """
import importlib.metadata, json, platform, subprocess
packages = [
    {"name": found.metadata["Name"], "version": found.version,
     "license": found.metadata["License-Expression"] or ""}
    for found in importlib.metadata.distributions()
]
try:
    query = ["dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\\n"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
except OSError:
    lines = []
print(json.dumps({"python": platform.python_version(), "packages": packages,
                  "debian": [line.split() for line in lines]}))
"""
"""A program for the interpreter of an image; prints what `sbom` takes."""


def sbom(name: str, listing: str) -> str:
    """The bill of materials of an image called `name`, from what `LISTING` printed in it.

    The same image gives the same components, in the same order.
    """
    found = json.loads(listing)
    bom = Bom(components=_components(found))
    image = Component(name=name, type=ComponentType.CONTAINER, bom_ref=f"image:{name}")
    bom.metadata.component = image
    bom.register_dependency(image, bom.components)
    bom.metadata.tools.components.add(this_component())
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _components(found: Mapping[str, Any]) -> Iterable[Component]:
    yield _component("generic", "", "python", found["python"])
    for package in found["packages"]:
        name = package["name"].lower().replace("_", "-")
        yield _component("pypi", "", name, package["version"], package["license"])
    for name, version, architecture in found["debian"]:
        yield _component("deb", "debian", name, version, arch=architecture)


def _component(
    kind: str, namespace: str, name: str, version: str, licence: str = "", **qualifiers: str
) -> Component:
    purl = PackageURL(kind, namespace or None, name, version, qualifiers)
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=purl.to_string(),
        purl=purl,
        licenses=[LicenseFactory().make_from_string(licence)] if licence else (),
    )
