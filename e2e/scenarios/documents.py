"""What the documentation shows of Kubernetes, done as a reader does it: page after page.

    page ──tools.snippets──▶ its snippets for Kubernetes ──▶ bash ──▶ what they print
                                                                          │
                                             compared with what the page shows

The tutorial begins with nothing and clears away what it made. The other pages take a Cluster
`flights` for granted, and share one: each has to leave it as it was. Images are built at the end,
on the base that this machine has: the one of docs/spark.md, and all by `make images`.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.harness import images
from e2e.harness.penstock import Penstock
from e2e.harness.process import (
    ROOT,
    Command,
    CommandError,
    E2EError,
    cache,
    environment,
    kubeconfig,
    run,
    run_bytes,
    wait_until,
)
from e2e.harness.scenario import Stage, scenario
from tools.snippets.output import matches
from tools.snippets.page import How, Snippet, read_page
from tools.snippets.page import documents as every_page
from tools.snippets.shell import script, sessions

HERE = "e2e/scenarios/documents.py"
README = "README.md"
TUTORIAL = "docs/tutorials/kubernetes.md"
SPARK = "docs/spark.md"
NAMESPACE = "air"
SHOWN = ("charts", "crds", "e2e", "examples")
"""Folders of the repository that commands of pages name."""
COMMAND_S = 300.0
ANSWERED = """kubectl() {
  command kubectl "$@" || {
    local code=$?
    [[ "$*" == "penstock why"* && $code = 1 ]] || return $code
  }
}
"""
"""`why` has the exit code 1 if something is amiss: to a reader, that is an answer."""


def pages() -> list[str]:
    """Those that show something for Kubernetes, the tutorial first."""
    found = [page for page in every_page(ROOT) if played(read_page(ROOT, page))]
    return sorted(found, key=lambda page: (page != TUTORIAL, page))


def played(snippets: Sequence[Snippet]) -> list[Snippet]:
    """The snippets for Kubernetes, each followed by what it is shown to print."""
    chosen: list[Snippet] = []
    before: Snippet | None = None
    for one in snippets:
        if one.how is How.KUBERNETES or (one.how is How.OUTPUT and before in chosen):
            chosen.append(one)
        before = one
    return chosen


def build_command(page: str) -> str:
    """What the page builds images by, in a checkout."""
    (command,) = [
        script(snippet.language, snippet.text)
        for snippet in read_page(ROOT, page)
        if snippet.how is How.ELSEWHERE and snippet.detail == HERE
    ]
    return command


def image_command(on: str) -> str:
    """What the page on Spark builds its image by; `on`: see `images.base`."""
    command = build_command(SPARK)
    if on.startswith("python:"):
        return command  # the base that the Dockerfile names can be pulled, too
    return command.replace("docker build", f"docker build --build-arg BASE={on}", 1)


@scenario("What the documentation shows of Kubernetes is done, page by page", images=("spark",))
def documents(stage: Stage) -> None:
    """Every command succeeds, and prints what its page shows."""
    first, *others = pages()
    with _reader() as reader:
        reader.read(stage, first)
    with _reader() as reader:
        cluster = Penstock(stage.kubectl, namespace=NAMESPACE)
        reader.do(f"kubectl create namespace {NAMESPACE}")
        reader.do(f"kubectl config set-context --current --namespace={NAMESPACE}")
        reader.do("kubectl apply -f examples/flights/cluster.yaml")
        for page in others:
            cluster.wait_settled(240.0)
            cluster.wait_brokers(3)
            wait_until("nothing is amiss", lambda: reader.do("kubectl penstock why flights"))
            reader.read(stage, page)
    stage.say(f"{SPARK}: its image")
    command = image_command(images.base())
    # It shares its layers with the image that was built before; only the name is its own.
    run("bash", "-euc", command, timeout_s=images.BUILD_S)
    for page in (README, TUTORIAL):
        stage.say(f"{page}: all images")
        run("bash", "-euc", build_command(page), timeout_s=images.BUILD_S)
        if images.contents(images.BROKER, images.OPERATOR) != stage.images:
            raise E2EError(f"{page}: the images that are played were built before, and differ")


class _Reader:
    """Somebody with a shell, an empty directory and a kubeconfig."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kubeconfig = folder / ".kubeconfig"
        self._kubeconfig.write_bytes(kubeconfig().read_bytes())
        for name in SHOWN:
            (folder / name).symlink_to(ROOT / name)

    def read(self, stage: Stage, page: str) -> None:
        """Does what the page shows. Raises E2EError with the place of what went otherwise."""
        printed = ""
        for snippet in played(read_page(ROOT, page)):
            stage.say(f"{snippet.place} {snippet.heading}")
            try:
                printed = self._one(stage, snippet, printed)
            except CommandError as error:
                raise E2EError(f"{snippet.place}: {error.output or error}") from error

    def _one(self, stage: Stage, snippet: Snippet, printed: str) -> str:
        """What the snippet prints; `printed`: the one before."""
        if snippet.how is How.OUTPUT:
            self._compare(stage, snippet.place, snippet.text, printed)
            return printed
        if snippet.language == "yaml":
            return self.do("kubectl apply -f -", snippet.text.encode())
        if snippet.language != "console":
            return self.do(ANSWERED + snippet.text)
        said = ""
        for session in sessions(snippet.text):
            one = self.do(ANSWERED + session.command)
            if session.shown:
                self._compare(stage, snippet.place, session.shown, one)
            said += one
        return said

    def do(self, script: str, given: bytes | None = None) -> str:
        """What a script prints; `given` is its standard input. Raises CommandError."""
        path = f"PATH={ROOT / '.venv/bin'}:{environment()['PATH']}"
        # Elsewhere, `e2e/cluster/up env` would not find the cluster that it has made.
        made = f"PENSTOCK_KUBERNETES_CACHE={cache()}"
        shell = ("env", "-C", str(self._folder), path, f"KUBECONFIG={self._kubeconfig}", made,
                 f"HOME={self._folder}", "bash", "-euo", "pipefail", "-c", script)  # fmt: skip
        return run_bytes(Command(shell, given, COMMAND_S)).decode(errors="replace")

    @staticmethod
    def _compare(stage: Stage, place: str, shown: str, printed: str) -> None:
        stage.expect(
            matches(shown, printed), f"{place} shows\n{shown}\nbut this was printed:\n{printed}"
        )


@contextmanager
def _reader() -> Iterator[_Reader]:
    """When the block ends, the directory and the namespace are gone."""
    with tempfile.TemporaryDirectory(prefix="penstock-reader-") as folder:
        _clear()
        try:
            yield _Reader(Path(folder))
        finally:
            _clear()


def _clear() -> None:
    run("kubectl", "delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_s=COMMAND_S)
