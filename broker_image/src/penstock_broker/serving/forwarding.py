"""For whom a broker makes a call to the controller: told in the call's metadata. An operator's
epoch is passed on as it came (`operators`).

    user ─▶ broker ── call, the user's verified principal ─▶ controller, which asks its own rules

The controller believes it of brokers alone, who prove by certificate who they are. Values are UTF-8
in binary metadata, because principals are not always ASCII.
"""

from typing import Any, Final

from penstock.rpc.operators import OPERATOR_EPOCH
from penstock_broker.serving.callers import Caller, Identify, Role, caller
from penstock_broker.serving.operators import operator_epoch

_PRINCIPAL: Final = "penstock-principal-bin"
_GROUP: Final = "penstock-group-bin"


def on_behalf() -> tuple[tuple[str, str | bytes], ...]:
    """Metadata for a call that a broker makes for the caller of the one being handled."""
    who, epoch = caller(), operator_epoch()
    named = ((OPERATOR_EPOCH, str(epoch)),) if epoch else ()
    if who.role is not Role.USER:
        return named
    groups = ((_GROUP, group.encode()) for group in who.groups)
    return ((_PRINCIPAL, who.principal.encode()), *groups, *named)


def believing_brokers(identify: Identify) -> Identify:
    """`identify` for a controller: a call that a broker makes for a user is that user's."""

    async def identify_user(context: Any) -> Caller:
        who = await identify(context)
        if who.role is not Role.BROKER:
            return who
        principal, groups = "", []
        for key, value in context.invocation_metadata() or ():
            if key == _PRINCIPAL:
                principal = value.decode()
            elif key == _GROUP:
                groups.append(value.decode())
        if not principal:
            return who
        return Caller(Role.USER, principal, tuple(groups), expires_s=who.expires_s)

    return identify_user
