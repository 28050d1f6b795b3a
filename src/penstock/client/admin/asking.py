"""How the admin's calls reach the cluster: any broker, until one has succeeded or refused.

Every call is retried, also at other brokers, until it succeeds, is refused, or `request_timeout_ms`
has passed; so it must be safe to repeat. A repetition may find what an earlier attempt did that had
no answer (`or_own_doing`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.credentials import Metadata
from penstock.client.cluster.every_broker import ask_at_once
from penstock.client.config import ClientConfig, parse_bootstrap
from penstock.client.process import ProcessGuard
from penstock.core.words import listed
from penstock.errors import Applied, ClusterError, ErrorCode, MisuseError, PenstockError
from penstock.proto.v1 import errors_pb2
from penstock.rpc.errors import error_from_wire
from penstock.rpc.operators import OPERATOR_EPOCH

PATIENCE_S: Final = 5.0
"""How long one broker may take for a change before another one is asked."""
# Retriable elsewhere because a broker may be behind; the controller is not.
_FINAL: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION})

Answer = TypeVar("Answer")
Taken = TypeVar("Taken")
Attempt = Callable[[Connection, float], Awaitable[Answer]]
"""Asks once and waits up to the given number of seconds for the answer."""


class _HasError(Protocol):
    """Any message with an `error` field."""

    @property
    def error(self) -> errors_pb2.Error: ...

    def HasField(self, field_name: Any) -> bool: ...  # noqa: N802 - protobuf's name


Result = TypeVar("Result", bound=_HasError)


class ToldMetadata:
    """The newest metadata that the controller has told of; brokers learn of it a moment later."""

    def __init__(self) -> None:
        self._newest = (0, 0)

    def hear(self, controller_epoch: int, metadata_version: int) -> None:
        """The controller has told of this metadata."""
        self._newest = max(self._newest, (controller_epoch, metadata_version))

    def check_not_behind(self, controller_epoch: int, metadata_version: int) -> None:
        """Raises a retriable error for a broker's metadata that is older than what the controller
        has told: a plan that takes from both would move again what has just moved."""
        seen = (controller_epoch, metadata_version)
        if seen < self._newest:
            raise ClusterError(
                f"the broker has metadata version {seen[1]} of controller epoch {seen[0]}, and the "
                f"controller has told of {self._newest[1]} of {self._newest[0]}: the broker has "
                "not heard of that yet; try again",
                ErrorCode.CONTROLLER_UNAVAILABLE,
            )


class AsksController(Protocol):
    """What `move_calls` need of `Asking`."""

    told: ToldMetadata

    async def cluster_id(self) -> str: ...

    async def read(self, method: Callable[[Connection], Any], request: object) -> Any: ...

    async def change(self, method: Callable[[Connection], Any], request: object) -> Any: ...


class Asking:
    """Of one admin client. Owned by its event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.timeout_s = cluster.config.request_timeout_ms / 1000
        self.guard = ProcessGuard("admin client")
        self.told = ToldMetadata()
        self._operator: tuple[Callable[[], Awaitable[int]], Callable[[str], None]] | None = None

    async def cluster_id(self) -> str:
        """Asks any broker if it is not known yet. Every call starts with this, with `ask`,
        `brokers` or `guard`: they raise MisuseError in a forked child."""
        self.guard.check()
        if not self.cluster.view.cluster_id:
            await self.cluster.refresh(self.timeout_s)
        return self.cluster.view.cluster_id

    async def brokers(self, broker_ids: Iterable[int] | None = None) -> dict[int, Connection]:
        """For calls that each broker answers for itself: these, or all live ones, by their ids.

        Raises MisuseError for one that the cluster does not have, and in a forked child.
        """
        self.guard.check()
        known = (await self.cluster.refresh()).brokers
        wanted = None if broker_ids is None else set(broker_ids)
        if unknown := (wanted or set()) - set(known):
            raise MisuseError(
                f"no such brokers: {listed(sorted(unknown))}; the cluster has "
                f"{listed(sorted(known))}"
            )
        return {
            broker_id: self.cluster.connections.to(known[broker_id].address)
            for broker_id in sorted(known)
            if (known[broker_id].alive if wanted is None else broker_id in wanted)
        }

    async def each(
        self,
        method: Callable[[Connection], Any],
        request: object,
        take: Callable[[Any], Taken],
        broker_ids: Iterable[int] | None = None,
    ) -> dict[int, Taken]:
        """What `take` makes of the answer of each of these `brokers`, by id; all are asked at once.

        Raises as `brokers`, or the error of the first that is silent, that refuses, or whose answer
        `take` does not; the others have been asked nevertheless.
        """

        async def ask(connection: Connection) -> Taken:
            return take(await connection.call(method(connection), request, self.timeout_s))

        found: dict[int, Taken] = {}
        for broker_id, answer in (await ask_at_once(await self.brokers(broker_ids), ask)).items():
            if isinstance(answer, PenstockError):
                raise answer
            found[broker_id] = answer
        return found

    async def ask(self, attempt: "Attempt[Answer]") -> Answer:
        """Raises an error that a retry cannot cure, or the last error when time is up."""
        self.guard.check()
        try:
            return await self.cluster.ask(
                attempt, self.timeout_s, patience_s=PATIENCE_S, final=_FINAL
            )
        except PenstockError as error:
            if error.code is ErrorCode.STALE_OPERATOR_EPOCH and self._operator is not None:
                self._operator[1](error.message)
            raise

    async def read(self, method: Callable[[Connection], Any], request: object) -> Any:
        """A call whose answer has one `error` field, which is raised; it changes nothing."""

        async def attempt(connection: Connection, timeout_s: float) -> Any:
            return checked(await connection.call(method(connection), request, timeout_s))

        return await self.ask(attempt)

    async def change(self, method: Callable[[Connection], Any], request: object) -> Any:
        """As `read`, for a change by this client's operator, if it is one; safe to repeat."""
        metadata = await self.operator()

        async def attempt(connection: Connection, timeout_s: float) -> Any:
            return checked(await connection.call(method(connection), request, timeout_s, metadata))

        return await self.ask(attempt)

    async def operator(self) -> Metadata:
        """What changes show. Raises PenstockError if there is to be an epoch, and is none."""
        epoch = 0 if self._operator is None else await self._operator[0]()
        return ((OPERATOR_EPOCH, str(epoch)),) if epoch else None

    def name_operator(
        self, epoch: Callable[[], Awaitable[int]], refused: Callable[[str], None]
    ) -> None:
        """See `AsyncAdmin.name_operator`."""
        self._operator = (epoch, refused)


def asking_of(bootstrap: str | Sequence[str], config: ClientConfig) -> Asking:
    """Connects on first use; whoever asks closes its `cluster`. Raises MisuseError."""
    return Asking(Cluster(parse_bootstrap(bootstrap), config, sticky=True))


@asynccontextmanager
async def asking_once(bootstrap: str, config: ClientConfig) -> AsyncIterator[Asking]:
    """For one of the calls, without `AsyncAdmin`: to import all of them takes 0.2 s of a core,
    which the shell's completion does not have."""
    asking = asking_of(bootstrap, config)
    try:
        yield asking
    finally:
        await asking.cluster.aclose()


def or_own_doing(
    attempt: "Attempt[Answer]", code: ErrorCode, *, validate_only: bool = False
) -> "Attempt[Answer | PenstockError]":
    """The attempt of a change, for repetition. Returns an error with this code instead of raising
    it, if an earlier attempt may have been applied: the change may be what it complains about.
    `validate_only`: never, as nothing is changed.

    The caller looks whether things are as was asked for, and raises the error if not: a broker
    without a controller's session has done nothing, and says nothing else than one that may have.
    """
    maybe_applied = False

    async def made(connection: Connection, timeout_s: float) -> Answer | PenstockError:
        nonlocal maybe_applied
        try:
            return await attempt(connection, timeout_s)
        except PenstockError as error:
            if maybe_applied and error.code is code:
                return error
            maybe_applied |= error.applied is Applied.MAYBE and not validate_only
            raise

    return made


def checked(result: Result) -> Result:
    """The result without an error; raises the one it has."""
    if result.HasField("error"):
        raise error_from_wire(result.error)
    return result
