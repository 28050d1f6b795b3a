"""Makes the quotas of a Cluster those of `spec.quotas`.

Brokers are asked for them once per pass, if the Cluster manages them. What goes wrong here is
reported beside the Cluster's other problems and holds up nothing else (I28).
"""

from penstock.core.manifest.quotas import plan_quotas
from penstock.errors import PenstockError
from penstock_operator.brokers import Brokers
from penstock_operator.events import Events
from penstock_operator.model import Object, Severity, Wait
from penstock_operator.objects import DesiredCluster


async def apply_quotas(
    brokers: Brokers, events: Events, desired: DesiredCluster, body: Object
) -> Wait | None:
    """Why the quotas are not those of the spec; None: they are, or are not managed."""
    wanted = desired.spec.quotas
    if wanted is None:
        return None
    try:
        admin = await brokers.admin(desired)
        stored = await admin.describe_quotas()
    except PenstockError as error:
        return Wait("QuotasUnknown", f"the brokers do not say which quotas are: {error.message}")
    step = plan_quotas(wanted, stored)
    if step is None:
        return None
    try:
        await admin.alter_quotas(step.rules)
    except PenstockError as error:
        severity = Severity.PROGRESS if error.retriable else Severity.BLOCKED
        return Wait("QuotasRefused", f"spec.quotas: {error.message}", severity)
    await events.tell(body, "Cluster", "QuotasChanged", str(step))
    if wanted and not desired.has_tls:
        await events.tell(
            body,
            "Cluster",
            "QuotasNotAsked",
            f"the quotas of spec.quotas are stored, but Cluster {desired.names.cluster} asks "
            "nobody who they are: only spec.security.mode Strict makes it hold them to quotas",
            warning=True,
        )
    return None
