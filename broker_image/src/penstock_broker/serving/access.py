"""The door: may this caller do that? Asked by the edge for whole requests, by services for parts.

    Edge, message streams ─ authorize(who, method, request) ─▶ table (`calls`) ─┐
    services ─ check, allows(operation, kind, name) ────────────────────────────┴▶ Rulebook
                                                          denied ─▶ counted in the audit log

A caller that nobody asked who they are may do everything, as before there were rules; so may the
cluster's own servers. Without Describe, a topic does not exist for a user.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from penstock.core.authorization import Kind, Operation, Prefix, Resource, Rights, Rulebook
from penstock.core.quotas import Limit
from penstock.errors import ClusterError, ErrorCode, PenstockError, ThrottledError
from penstock_broker.serving.audit import Denials, log_change
from penstock_broker.serving.callers import Caller, Role, caller
from penstock_broker.serving.calls import BY_METHOD, Who
from penstock_broker.serving.quotas import Quotas

_FETCH: Final = "Fetch"
_PRODUCE: Final = "Produce"


class Access:
    """See the module. `rules` is fed by whoever learns of them."""

    def __init__(
        self,
        rules: Rulebook | None = None,
        unknown_topic: Callable[[str], PenstockError] | None = None,
    ) -> None:
        """`unknown_topic` makes the error for a topic that does not exist."""
        self.rules = rules or Rulebook()
        self._unknown_topic = unknown_topic or _unknown_topic
        self._denials = Denials()
        self.quotas = Quotas()

    def rights(self, who: Caller) -> Rights | None:
        """What a user may do now; None: everything."""
        if who.role is not Role.USER:
            return None
        return self.rules.rights(who.principal, who.groups)

    def allows(
        self, operation: Operation, kind: Kind, name: str = "", who: Caller | None = None
    ) -> bool:
        """Whether the caller (None: of the call that is being handled) may do this."""
        rights = self.rights(caller() if who is None else who)
        return rights is None or rights.decide(operation, kind, name).allowed

    def check(
        self, operation: Operation, kind: Kind, name: str = "", who: Caller | None = None
    ) -> None:
        """Raises ClusterError unless the caller may do this.

        PERMISSION_DENIED; UNKNOWN_TOPIC for a topic that they may not see; AUTH_NOT_READY before
        the rules are known.
        """
        if who is None:
            who = caller()
        if who.role is not Role.USER:
            return
        rights = self.rules.rights(who.principal, who.groups)
        if not rights.decide(operation, kind, name).allowed:
            raise self._denied(who, rights, operation, Resource(kind, name))

    def check_all(self, operation: Operation, prefix: Prefix) -> None:
        """Raises ClusterError unless the caller may do this to everything that begins so."""
        who = caller()
        rights = self.rights(who)
        if rights is None or rights.decide_all(operation, prefix).allowed:
            return
        self.check_ready(who)
        self._denials.note(who.principal, operation, prefix.kind)
        raise ClusterError(
            f"{who.principal} may not {operation.value} all {prefix.kind.value}s whose names begin "
            f"with {prefix.text!r}, as this pattern does: name {prefix.kind.value}s instead, or "
            f"ask an administrator for a rule with {operation.value} for such a prefix",
            ErrorCode.PERMISSION_DENIED,
        )

    def authorize(self, who: Caller, method: str, request: Any) -> None:
        """`callers.Authorize`. Raises ClusterError as `check`."""
        if who.role is not Role.USER:
            return
        call = BY_METHOD.get(method)
        if call is None or call.who is Who.SERVERS:
            raise ClusterError(
                f"{who.principal} may not call {method}: only servers of the cluster do",
                ErrorCode.PERMISSION_DENIED,
            )
        for need in call.edge:
            assert need.names is not None, "it is decided here"
            for name in need.names(request):
                if need.kind is Kind.CLUSTER and _is_about_oneself(who, request):
                    continue
                self.check(need.operation, need.kind, name, who)

    def admit(self, who: Caller, method: str, request: Any) -> None:
        """`Door.admit`. A fetch is never refused: it waits (`Fetching`).

        Nor is, for the time of calls, whoever may change quotas: one that is too small can always
        be mended, and the operator is never kept from seeing its Cluster.
        """
        quotas = self.quotas
        if not quotas.active or method == _FETCH:
            return
        if method == _PRODUCE:
            quotas.check(who, Limit.REQUEST, Limit.PRODUCE)
            quotas.take(who, Limit.PRODUCE, request.ByteSize())
        elif quotas.debt_ms(who, Limit.REQUEST) and not self.allows(
            Operation.ALTER, Kind.CLUSTER, who=who
        ):
            quotas.check(who, Limit.REQUEST)

    def worked(self, who: Caller, seconds: float) -> None:
        """`Door.worked`."""
        if self.quotas.active:
            self.quotas.take(who, Limit.REQUEST, seconds * 1_000)

    def streaming(self, who: Caller) -> AbstractContextManager[None]:
        """`Door.streaming`."""
        return self.quotas.streaming(who)

    def finished(self, who: Caller, method: str, request: Any, answer: Any) -> None:
        """A user's call is over: its response, or the error that ended it, as `answer`.

        What a quota refuses is a metric, and no line of the audit log for each.
        """
        if isinstance(answer, ThrottledError):  # also the controller's
            self.quotas.note_refused(who.principal)
            return
        call = BY_METHOD.get(method)
        if call is not None and call.changes and who.role is Role.USER:
            log_change(who.principal, method, request, answer)

    def _denied(
        self, who: Caller, rights: Rights, operation: Operation, resource: Resource
    ) -> PenstockError:
        self.check_ready(who)
        self._denials.note(who.principal, operation, resource.kind)
        kind, name = resource.kind, resource.name
        hidden = kind is Kind.TOPIC and operation is not Operation.CREATE
        if hidden and not rights.decide(Operation.DESCRIBE, kind, name).allowed:
            return self._unknown_topic(name)
        return ClusterError(
            f"{who.principal} may not {operation.value} {resource}: no rule allows it; ask an "
            f"administrator for {_what_to_ask(operation, resource)}",
            ErrorCode.PERMISSION_DENIED,
        )

    def check_ready(self, who: Caller) -> None:
        """Raises ClusterError(AUTH_NOT_READY) for users as long as the rules are not known."""
        if not self.rules.complete and who.role is Role.USER:
            raise ClusterError(
                "this server does not know the rules of access yet: it has not heard from a "
                "controller since it started; try again",
                ErrorCode.AUTH_NOT_READY,
            )


def _is_about_oneself(who: Caller, request: Any) -> bool:
    """Of CheckAccess: everybody may ask about themselves, also by name."""
    return getattr(request, "principal", None) == who.principal


def _what_to_ask(operation: Operation, resource: Resource) -> str:
    if resource.kind is Kind.CLUSTER:
        return "the role " + ("viewer" if operation is Operation.DESCRIBE else "admin")
    return f"{operation.value} on {resource}"


def _unknown_topic(name: str) -> PenstockError:
    return ClusterError(
        f"there is no topic {name!r} that you may see; check the name", ErrorCode.UNKNOWN_TOPIC
    )
