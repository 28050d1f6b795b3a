"""Which cluster a command talks to.

    --bootstrap ─▶ those addresses
    --cluster ───▶ the Kubernetes Cluster of that name, through its API
    -n, --context, --kubeconfig ─▶ the only Cluster there
    --profile, or the current profile ─▶ what it names, with its files
    none of them ▶ the one local cluster ─▶ whoever listens on localhost:9092
                   ─▶ the one Cluster that kubeconfig shows ─▶ localhost:9092

What it trusts and shows: --ca-file, --token-file, --certificate, --key; a local cluster found by
itself is known to have a CA and an admin's token, or neither.

As `kubectl penstock …`, or with an option of Kubernetes, a command means Kubernetes: local clusters
and the current profile are ignored, and PENSTOCK_BOOTSTRAP is refused. If there are several
candidates, the command never guesses.
"""

import importlib
import os
import socket
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import typer

from penstock.cli import profiles
from penstock.cli.kube.choice import KubeChoice
from penstock.cli.profiles import Profile
from penstock.cli.usage import WrongUsageError, typed
from penstock.errors import ErrorCode, MisuseError

if TYPE_CHECKING:
    from penstock.cli.kube.reach import Reached
    from penstock.client import Admin
    from penstock.client.config import AddressResolver, ClientOptions, SecurityOptions

DEFAULT_BOOTSTRAP: Final = "localhost:9092"
PROBE_S: Final = 0.3
ADDRESS_VARIABLE: Final = "PENSTOCK_BOOTSTRAP"
ANSWER_MS: Final = 10_000
"""For commands that look, where silence is an answer. A broker with very many partitions takes some
seconds to tell of its disk."""


def _no_files() -> "SecurityOptions":
    return {}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options before the command: `penstock --cluster NS/NAME --context C topic list`."""

    cluster: str | None = None
    choice: KubeChoice = field(default_factory=KubeChoice)
    is_plugin: bool = False
    files: "SecurityOptions" = field(default_factory=_no_files)
    profile: str | None = None
    is_typed: bool = False
    """The address is an option of the command, not the environment's."""

    def locate(self, bootstrap: str | None) -> "Located":
        """See the module. Raises MisuseError, or the error of Kubernetes for a named cluster."""
        if "" in (bootstrap, self.cluster):
            raise WrongUsageError(
                "--bootstrap or --cluster is empty (an unset variable?); leave it out, or name "
                "the cluster"
            )
        if bootstrap and self.cluster:
            raise WrongUsageError("give --bootstrap (or PENSTOCK_BOOTSTRAP) or --cluster, not both")
        profile = self.profile_of(bootstrap)
        if profile is not None:
            return self._over(profile).locate(profile.bootstrap)
        if bootstrap:
            self._check_not_kubernetes(bootstrap)
            check_addresses(bootstrap)
            return Located(bootstrap, files=self.files)
        if self._names_kubernetes:
            return self._in_kubernetes()
        local = _local_cluster()
        if local is not None:
            return self.in_local(local)
        if self.choice.may_connect and not _listens_locally():
            reach: Any = importlib.import_module("penstock.cli.kube.reach")
            reached = reach.reach_only()
            if reached is not None:
                return self._through(reached)
        return Located(DEFAULT_BOOTSTRAP, files=self.files)

    def means_kubernetes(self, bootstrap: str | None) -> bool:
        """Whether `locate` would look for a Cluster on Kubernetes. Raises MisuseError."""
        profile = self.profile_of(bootstrap)
        if profile is not None:
            return profile.cluster is not None
        if bootstrap or self._names_kubernetes:
            return not bootstrap
        return _local_cluster() is None and self.choice.may_connect and not _listens_locally()

    @property
    def _names_kubernetes(self) -> bool:
        return self.is_plugin or bool(self.cluster) or self.choice != KubeChoice()

    def _check_not_kubernetes(self, bootstrap: str) -> None:
        """An address and Kubernetes are two clusters, and the wrong one would lose its topic.
        Raises WrongUsageError."""
        if self.choice != KubeChoice():
            raise WrongUsageError(
                f"the address {bootstrap!r} (--bootstrap, PENSTOCK_BOOTSTRAP or a profile's) and "
                "an option of Kubernetes (--namespace, --context or --kubeconfig) are two "
                "clusters; give one of them"
            )
        if self.is_plugin and not self.is_typed and os.environ.get(ADDRESS_VARIABLE) == bootstrap:
            raise WrongUsageError(
                f"PENSTOCK_BOOTSTRAP is {bootstrap!r}, and `kubectl penstock` means a Cluster on "
                "Kubernetes; unset it, or use `penstock`"
            )

    def on_kubernetes(self) -> "Wanted":
        """For commands that read a Cluster's resources. Raises MisuseError."""
        profile = self.profile_of(None)
        if profile is None or (profile.cluster is None and self.profile is None):
            return self
        if profile.cluster is None:
            raise MisuseError(
                f"profile {self.profile} names brokers, and this command reads a Cluster's "
                "resources on Kubernetes; name a profile with a cluster, or leave it out",
                ErrorCode.INVALID_REQUEST,
            )
        return self._over(profile)

    def profile_of(self, bootstrap: str | None) -> Profile | None:
        """The one that is named; else the current one, if nothing else says which cluster."""
        addressed = bool(bootstrap or self.cluster)
        if self.profile is not None:
            if addressed:
                raise WrongUsageError(
                    "give --bootstrap (or PENSTOCK_BOOTSTRAP), --cluster (or PENSTOCK_CLUSTER) or "
                    "--profile (or PENSTOCK_PROFILE), only one of them"
                )
            return profiles.load().get(self.profile)
        if addressed or self.is_plugin or self.choice != KubeChoice():
            return None
        known = profiles.load()
        return None if known.current is None else known.get(known.current)

    def _over(self, profile: Profile) -> "Wanted":
        """These options, and the profile's for those that are not given."""
        choice = KubeChoice(
            self.choice.namespace or profile.namespace,
            self.choice.context or profile.context,
            self.choice.kubeconfig or profile.kubeconfig,
        )
        files = self._files_over(
            {name: path for name, path in profile.given.items() if name.endswith("_file")}
        )
        return replace(self, cluster=profile.cluster, choice=choice, files=files, profile=None)

    def in_local(self, local: Any) -> "Located":
        """As its administrator, unless something else was given. Who shows a certificate does so
        where that is what counts, and is not its administrator beside."""
        state: Any = importlib.import_module("penstock_broker.local.state")
        known = state.StateDirectory(local.root).client_files
        if self.files.get("certificate_file") and local.state.certificate_bootstrap:
            files = self._files_over({"ca_file": known["ca_file"], "token_file": ""})
            return Located(local.state.certificate_bootstrap, files=files, local_root=local.root)
        files = self._files_over(known)
        return Located(local.state.bootstrap, files=files, local_root=local.root)

    def _files_over(self, known: Any) -> "SecurityOptions":
        given = {key: value for key, value in self.files.items() if value is not None}
        return cast("SecurityOptions", {**known, **given})

    def _in_kubernetes(self) -> "Located":
        reach: Any = importlib.import_module("penstock.cli.kube.reach")
        reached = reach.reach(self.choice, self.cluster)
        if self.cluster is None and not self.is_plugin:
            reach.tell_which(reached.name)
        return self._through(reached)

    def _through(self, reached: "Reached") -> "Located":
        """With the Cluster's own CA and login, unless something else was given."""
        files = self._files_over(reached.options)
        return Located(reached.bootstrap, reached.forwarder.resolve, files, reached)


@dataclass(frozen=True, slots=True)
class Located:
    """Arguments of every client: `Consumer(where.bootstrap, **where.options)`."""

    bootstrap: str
    resolve_address: "AddressResolver | None" = None
    files: "SecurityOptions" = field(default_factory=_no_files)
    reached: "Reached | None" = None
    """Holds what leads to a Cluster in Kubernetes."""
    local_root: Path | None = None
    """The directory of a local cluster that was found by itself."""

    @property
    def options(self) -> "ClientOptions":
        """Keyword arguments of every client."""
        return cast("ClientOptions", {"resolve_address": self.resolve_address, **self.files})


WANTED: Final[ContextVar[Wanted]] = ContextVar("wanted", default=Wanted())  # noqa: B039 - frozen
"""Set once per run of the program, by its first callback."""


def locate(bootstrap: str | None) -> Located:
    """Where the running command's cluster is. Raises MisuseError."""
    return WANTED.get().locate(bootstrap)


def note_typed(
    context: typer.Context, parameter: typer.CallbackParam, value: str | None
) -> str | None:
    """Callback of --bootstrap: the environment may have the same address, and is not meant then."""
    source = context.get_parameter_source(parameter.name or "")
    if source is not None and source.name == "COMMANDLINE":
        WANTED.set(replace(WANTED.get(), is_typed=True))
    return value


def check_addresses(bootstrap: str) -> None:
    """Where they are typed, before they are used. Raises WrongUsageError."""
    from penstock.client.config import parse_bootstrap  # noqa: PLC0415 - not for --help

    with typed():
        parse_bootstrap(bootstrap)


def open_admin(where: "str | Located | None", *, only_look: bool = False) -> "Admin":
    """An admin client, owned by the caller; takes the given address, or the result of `locate`.

    `only_look`: whoever does not answer within ANSWER_MS does not.
    """
    from penstock.client import Admin  # noqa: PLC0415 - grpc only when it is needed

    located = where if isinstance(where, Located) else locate(where)
    if not only_look:
        return Admin(located.bootstrap, **located.options)
    options: ClientOptions = {
        "connect_timeout_ms": ANSWER_MS,
        "request_timeout_ms": ANSWER_MS,
        **located.options,
    }
    return Admin(located.bootstrap, **options)


def _local_cluster() -> Any:
    """The one running local cluster (a `registry.KnownCluster`); None without one, or without the
    broker extra."""
    try:
        registry: Any = importlib.import_module("penstock_broker.local.registry")
    except ModuleNotFoundError:
        return None
    running = registry.running_clusters()
    if len(running) > 1:
        names = ", ".join(f"{one.state.cluster} ({one.state.bootstrap})" for one in running)
        raise MisuseError(
            f"several local clusters are running; choose one with --bootstrap: {names}"
        )
    return running[0] if running else None


def _listens_locally() -> bool:
    host, _, port = DEFAULT_BOOTSTRAP.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), PROBE_S):
            return True
    except OSError:
        return False
