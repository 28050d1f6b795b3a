"""`penstock broker forget`: a broker that will never answer again is let go, by name.

what is stored ─▶ `refusal`, or what goes with it ─▶ confirm ─▶ UnregisterBroker, by directory id

The controller checks again: between the look and the change the broker may have come back, or a
partition may have got a replica there. A broker with another data directory is another one.
"""

from typing import TYPE_CHECKING

import typer

from penstock.cli.broker_left import Left
from penstock.cli.changes import confirm, print_change
from penstock.cli.options import Output
from penstock.errors import ErrorCode, MisuseError

if TYPE_CHECKING:
    from penstock.client import Admin, BrokerPlacement


def forget(
    admin: "Admin",
    broker: "BrokerPlacement",
    left: Left,
    output: Output,
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """Says what would be done, asks, and does it.

    Raises MisuseError if the cluster still needs the broker, and ClusterError if that has changed
    meanwhile: then nothing was done.
    """
    why = refusal(broker, left)
    if why is not None:
        raise MisuseError(why, ErrorCode.INVALID_REQUEST)
    if output is Output.TABLE:
        typer.echo("\n".join(consequences(broker, left)))
    if not dry_run:
        confirm(f"Forget broker {broker.broker_id}?", yes=yes)
        admin.unregister_broker(broker.broker_id, directory_id=broker.directory_id)
    record = {
        "broker": broker.broker_id,
        "directory_id": broker.directory_id,
        "former_copies": left.former,
    }
    done = "could be forgotten" if dry_run else "is forgotten"
    print_change(f"broker {broker.broker_id} {done}", record, output, dry_run=dry_run)


def of_an_operator(broker: int, cluster: str) -> str:
    """Why a broker of a Cluster on Kubernetes, named `namespace/name`, is not let go from here."""
    namespace, _, name = cluster.partition("/")
    annotate = f"kubectl annotate cluster.penstock.dev/{name} -n {namespace} penstock.dev"
    return (
        f"Cluster {cluster} has an operator, which lets go of its highest brokers once "
        f"spec.brokers is lower; if broker {broker} then never answers: {annotate}/forget-broker="
        f"{broker}; if the spec wants it, and its disk is lost: {annotate}/replace-volume={broker}"
    )


def refusal(broker: "BrokerPlacement", left: Left) -> str | None:
    """Why it cannot be let go now, and what to do; None if it can.

    Former copies do not count: who is gone never says that they are deleted.
    """
    number = broker.broker_id
    if broker.alive:
        return (
            f"broker {number} is alive: empty it with penstock broker drain {number} --wait, and "
            "stop it before it is forgotten"
        )
    if left.coming:
        return (
            f"broker {number} is to get replicas of {_partitions(left.coming)}; first: penstock "
            f"partitions cancel --broker {number}"
        )
    if left.held:
        return (
            f"broker {number} has replicas of {_partitions(left.held)}, {left.moving} of them "
            f"moving to others; first: penstock broker drain {number} --wait"
        )
    return None


def consequences(broker: "BrokerPlacement", left: Left) -> list[str]:
    """What it means to let it go, for people."""
    number = broker.broker_id
    said = [f"broker {number} is down, and no partition has, or is to get, a replica there"]
    if left.former:
        said.append(
            f"its former copies of {_partitions(left.former)} stay on its disk: nobody deletes them"
        )
    said.append(
        f"should it start again, it registers as a new broker; its data directory is "
        f"{broker.directory_id}"
    )
    return said


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
