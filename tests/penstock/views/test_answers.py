"""Amounts and rates of topics, from what brokers store at two moments."""

from penstock.client import LogDescription
from penstock.client.model import PartitionLog
from penstock.views.answers import Logs, TopicTraffic, traffic


def log(partition: int, end: int, *, leads: bool = True, topic_id: str = "id") -> PartitionLog:
    return PartitionLog("flights", topic_id, partition, leads, 1, 5, end, end, 100)


def logs(at_s: float, *found: PartitionLog, silent: bool = False) -> Logs:
    return Logs(at_s, {0: LogDescription(0, found, 1, 1)}, {1: "late"} if silent else {})


def test_leaders_are_added_up_and_followers_are_not() -> None:
    seen = traffic(logs(1.0, log(0, 15), log(1, 25), log(2, 99, leads=False)), None)
    assert seen == {"flights": TopicTraffic(30, 200, None)}


def test_a_rate_is_what_was_added_since() -> None:
    before, now = logs(1.0, log(0, 10), log(1, 20)), logs(3.0, log(0, 30), log(1, 20))
    assert traffic(now, before)["flights"].records_rate == 10.0


def test_a_rate_is_never_negative_and_a_new_partition_has_none_yet() -> None:
    before = logs(1.0, log(0, 50))
    assert traffic(logs(3.0, log(0, 30)), before)["flights"].records_rate == 0.0
    assert traffic(logs(3.0, log(7, 30)), before)["flights"].records_rate is None


def test_a_topic_that_was_made_again_begins_again() -> None:
    before = logs(1.0, log(0, 50))
    seen = traffic(logs(3.0, log(0, 90, topic_id="new")), before)
    assert seen["flights"].records_rate is None


def test_a_silent_broker_makes_the_amount_unknown() -> None:
    assert traffic(logs(1.0, log(0, 10), silent=True), None)["flights"].unseen
