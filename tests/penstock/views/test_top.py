"""`penstock top` does not hide what it did not ask."""

from penstock.client import BrokerDescription, ClusterDescription, GroupListing, GroupState
from penstock.views.answers import Answer, Logs
from penstock.views.overview import ClusterAnswers
from penstock.views.top import TopAnswers, look

CLUSTER = ClusterDescription(
    "id", 1, 1, controller_reachable=True,
    brokers=(BrokerDescription(0, "h", 9092, "", alive=True),), topics=0, partitions=0,
    offline_partitions=0, under_replicated_partitions=0, under_min_isr_partitions=0,
)  # fmt: skip
SEEN = ClusterAnswers(
    cluster=Answer(CLUSTER), logs=Answer(Logs(1.0)), short=Answer(()), blocking=Answer([])
)


def test_groups_whose_lag_was_not_asked_for_may_be_further_behind() -> None:
    listed = [GroupListing(name, GroupState.STABLE, 1) for name in ("a", "b", "c")]
    asked = TopAnswers(SEEN, Answer({}), {}, Answer(listed), {"a": Answer()})
    assert look(asked, 10).problems == (
        "the lag of 2 of 3 groups: only the first 1 by name are asked",
    )
    all_asked = TopAnswers(SEEN, Answer({}), {}, Answer(listed[:1]), {"a": Answer()})
    assert look(all_asked, 10).problems == ()


def test_what_nobody_answered_is_not_said_to_be_absent() -> None:
    silent = ClusterAnswers(
        cluster=Answer(problem="late"), logs=Answer(), short=Answer(()), blocking=Answer([])
    )
    seen = look(TopAnswers(silent, Answer(problem="late"), {}, Answer(problem="late"), {}), 10)
    assert {table.empty for table in seen.tables} == {"Not known: nobody answered that."}
    known = look(TopAnswers(SEEN, Answer({}), {}, Answer([]), {}), 10)
    assert [one.empty for one in known.tables[1:]] == [
        "There are no topics.",
        "There are no groups.",
    ]
