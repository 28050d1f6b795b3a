"""Hibernation: all brokers stop at once, and every replica keeps its seat until they are back.

    AlterCluster(hibernating) ─▶ brokers refuse new work, catch up, fsync ─▶ they stop, ISRs whole
    AlterCluster(awake)       ─▶ leaders are elected among those that are there; writes go on

While it lasts nothing is elected, no ISR shrinks, and no move begins or switches. A broker that
stops loses its leaderships, but not its seats: otherwise the last one to stop would be the only
member of every ISR, and nobody else could lead at wake-up. Keeping a seat is always safe, because
the high watermark waits for every member (I5). A broker that comes back without its data leaves the
ISR as it always does (`election.forget`), and damaged replicas give way to sound ones (I33).

Who wakes the cluster decides how long to wait for brokers: what is not back then is dead, as ever.
"""

from dataclasses import replace

from penstock.core.control.contract import Severity
from penstock.core.control.draft import Draft
from penstock.core.control.formats import check_hibernation
from penstock.core.control.move_contract import AlterCluster
from penstock.core.control.requests import check_cluster_id
from penstock.core.control.sessions import Sessions
from penstock.errors import ClusterError, ErrorCode


def decide_alter_cluster(draft: Draft, request: AlterCluster, sessions: Sessions) -> None:
    """Raises ClusterError FORMAT_TOO_OLD or CONTROLLER_UNAVAILABLE; then nothing has changed.

    It begins only in the store itself, because all brokers stop on its word, and those that keep
    the journal with them. It ends in the journal, too: what is lost with it is only asked again.
    """
    check_cluster_id(draft, request.cluster_id)
    wanted = request.hibernating
    if wanted:
        check_hibernation(draft)
        if draft.journaling:
            raise ClusterError(
                "the metadata store is unavailable, and a cluster goes to sleep only with it; try "
                "again when it is back",
                ErrorCode.CONTROLLER_UNAVAILABLE,
            )
    if request.validate_only or wanted == draft.cluster.hibernating:
        return
    draft.put_cluster(replace(draft.cluster, hibernating=wanted))
    if wanted:
        draft.stored_only = True
        draft.decide(Severity.INFO, "hibernation begins", brokers=len(draft.cluster.brokers))
        return
    draft.decide(Severity.INFO, "hibernation ends", brokers=len(draft.cluster.brokers))
    draft.settle_all(draft.liveness(sessions.leaving), None)
