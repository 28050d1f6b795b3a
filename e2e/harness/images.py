"""Our images: built by docker on the base that this machine has, and put into the nodes.

Those of former releases are built from their own trees, by their own Dockerfiles and locks, once.

`python -m e2e.harness.images` is `make images`: it also writes each one's bill of materials, and
with a cluster here it puts them into its nodes. A node keeps a note of which build it has, so that
an image that did not change is not sent again.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from e2e.harness import releases
from e2e.harness.kubectl import Kubectl
from e2e.harness.nodes import Nodes
from e2e.harness.process import CLUSTER_NAME, ROOT, CommandError, E2EError, kubeconfig, run
from penstock import __version__
from tools.sbom import LISTING, sbom

TAG: Final = "e2e"
NOTES: Final = "/kind/penstock-images"
BILLS: Final = Path("build/sbom")
BUILD_S: Final = 1_200.0
COMMIT_LABEL: Final = "dev.penstock.commit"


@dataclass(frozen=True, slots=True)
class Image:
    """`own_base`: the base its Dockerfile names is another one than python:3.12-slim.

    `release`: the former release that it is of; empty: this one.
    """

    name: str
    dockerfile: str
    own_base: bool = False
    release: str = ""

    @property
    def version(self) -> str:
        """What stands behind the colon."""
        return self.release.lower() or TAG

    @property
    def tag(self) -> str:
        return f"penstock-{self.name}:{self.version}"


BROKER: Final = Image("broker", "broker_image/Dockerfile")
OPERATOR: Final = Image("operator", "operator/Dockerfile")
SPARK: Final = Image("spark", "examples/spark/Dockerfile", own_base=True)
IMAGES: Final = {image.name: image for image in (BROKER, OPERATOR, SPARK)}


def former(release: str) -> tuple[Image, Image]:
    """Broker and operator of a former release."""
    return replace(BROKER, release=release), replace(OPERATOR, release=release)


def base() -> str:
    """What to build on: the published Python image, or the one made here."""
    return run(str(ROOT / "e2e/cluster/up"), "base", timeout_s=900.0).strip()


def build(image: Image, on: str) -> None:
    """Builds one image. Raises CommandError with docker's last line, E2EError."""
    if image.release:
        _build_former(image, on)
        return
    published = on.startswith("python:")
    chosen = () if published and image.own_base else ("--build-arg", f"BASE={on}")
    version = ("--build-arg", f"VERSION={__version__}")
    run(
        "docker", "build", "-q", "-f", image.dockerfile, "-t", image.tag, *chosen, *version, ".",
        timeout_s=BUILD_S,
    )  # fmt: skip


def _build_former(image: Image, on: str) -> None:
    """Unless it is there: a commit never changes."""
    commit = releases.commits()[image.release]
    if _label(image.tag, COMMIT_LABEL) == commit:
        return
    tree = releases.tree(image.release)
    run(
        "docker", "build", "-q", "-f", str(tree / image.dockerfile), "-t", image.tag,
        "--build-arg", f"BASE={on}", "--label", f"{COMMIT_LABEL}={commit}", str(tree),
        timeout_s=BUILD_S,
    )  # fmt: skip


def _label(reference: str, name: str) -> str:
    """Empty if there is no such label, or no such image."""
    try:
        shown = f'{{{{index .Config.Labels "{name}"}}}}'
        return run("docker", "image", "inspect", "-f", shown, reference).strip()
    except CommandError:
        return ""


def bill(image: Image) -> Path:
    """Writes what the image is made of, and returns the file."""
    program = ("--entrypoint", "python", image.tag, "-c", LISTING)
    listing = run("docker", "run", "--rm", "--network=none", *program, timeout_s=60.0)
    path = BILLS / f"penstock-{image.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(sbom(f"penstock-{image.name}", listing))
    return path


def image_id(reference: str) -> str:
    """The digest of an image's contents."""
    return run("docker", "image", "inspect", "-f", "{{.Id}}", reference).strip()


def contents(*images: Image) -> str:
    """One word for the contents of all of these: it fits into a label."""
    together = "".join(image_id(image.tag) for image in images)
    return hashlib.sha256(together.encode()).hexdigest()[:16]


def load(images: Sequence[Image], nodes: Nodes) -> None:
    """Puts the images into the nodes that lack one of these builds.

    All in one archive: what they have in common, Python and its packages, is sent once.
    """
    wanted = {image: image_id(image.tag) for image in images}
    lacking = {
        name: [image for image in images if _note(image, name) != wanted[image]]
        for name in nodes.names()
    }
    missing = [image for image in images if any(image in those for those in lacking.values())]
    if not missing:
        return
    names = [name for name, those in lacking.items() if those]
    run(
        "kind", "load", "docker-image", *(image.tag for image in missing), "--name", CLUSTER_NAME,
        "--nodes", ",".join(names), timeout_s=900.0,
    )  # fmt: skip
    for name in names:
        for image in missing:
            run("docker", "exec", name, "sh", "-c",
                f"mkdir -p {NOTES} && echo {wanted[image]} >{_note_of(image)}")  # fmt: skip


def _note(image: Image, node: str) -> str:
    try:
        return run("docker", "exec", node, "cat", _note_of(image)).strip()
    except CommandError:
        return ""


def _note_of(image: Image) -> str:
    return f"{NOTES}/{image.name}-{image.version}"


def size_mb(reference: str) -> int:
    """Size of an image with its base, in MB."""
    return int(run("docker", "image", "inspect", "-f", "{{.Size}}", reference)) // 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="make images", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*IMAGES, []], help="all when none is named")
    names = parser.parse_args().names or list(IMAGES)
    try:
        on = base()
        for name in names:
            image, began = IMAGES[name], time.monotonic()
            build(image, on)
            beyond = size_mb(image.tag) - size_mb(on)
            took = time.monotonic() - began
            print(f"{image.tag}: {beyond} MB beyond {on}, {took:.0f} s; {bill(image)}", flush=True)
        if kubeconfig().exists():
            load([IMAGES[name] for name in names], Nodes(Kubectl()))
            print("in all nodes of the cluster here", flush=True)
    except E2EError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
