"""One broker and its controller as real processes: the plain protocol end to end."""

from support.cluster import Cluster
from support.wire import Wire


def test_what_is_produced_is_fetched_in_order(shared_broker: Cluster) -> None:
    shared_broker.create_topic("round-trip")
    with Wire(shared_broker.brokers[0].address) as wire:
        first = wire.produce("round-trip", [b"a", b"b"])
        second = wire.produce("round-trip", [b"c"])
        assert (first.base_offset, second.base_offset) == (0, 2)
        assert wire.read_all("round-trip") == [b"a", b"b", b"c"]
