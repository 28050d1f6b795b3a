"""Groups in transactions, simulated: pipes, rings, a bank. Planted bugs: `test_simulation`."""

import pytest

from penstock.core.types import Offset, ProducerId, ReplicaKey
from penstock_sim.ledger import hops_of
from penstock_sim.pipe_checks import PipeChecks
from penstock_sim.producing import Written
from penstock_sim.reads import Input, Reads
from penstock_sim.ring import BACK, THERE
from penstock_sim.scheduler import RuleError
from penstock_sim.world import TOPIC_ID, World, simulate

KEY = ReplicaKey(TOPIC_ID, 0)


def test_what_comes_out_of_a_pipe_is_made_of_what_went_in() -> None:
    histories = [simulate(seed, pipe=True) for seed in range(20)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.piped for history in histories) > 1_000
    assert sum(history.group_commits for history in histories) > 100
    assert sum(history.transactions for history in histories) > 200


def test_a_bank_has_what_it_had() -> None:
    histories = [simulate(seed, bank=True) for seed in range(20)]
    for history in histories:
        assert history.violation is None, (history.seed, history.violation)
    assert sum(history.transactions for history in histories) > 50


def test_retention_may_take_the_end_of_a_transaction_whose_beginning_was_read() -> None:
    assert simulate(50400034, pipe=True).violation is None


# ---------------------------------------------------------------- who read what of whom


def test_in_a_ring_each_pipe_reads_what_the_other_wrote() -> None:
    read = {THERE: 0, BACK: 0}
    for seed in range(10):
        world = World(seed, ring=True)
        world.run()
        assert isinstance(world.group_checks, PipeChecks)
        for one in world.group_checks.reads.committed():
            if hops_of(one.record.value):
                read[one.group_id] += 1
    assert min(read.values()) > 300, read


class Committed:
    """A history with only transactions and what they read."""

    def __init__(self, *names: str, aborted: str = "") -> None:
        world = World(1, ring=True)
        self.written = {name: Written(name, (ProducerId(at), 0)) for at, name in enumerate(names)}
        for written in self.written.values():
            world.ledger.begun(written)
            world.transaction_checks.outcomes[written.who] = written.name != aborted
        self.reads = Reads(world)

    def read(self, reader: str, offset: int, writer: str) -> None:
        value = f"{writer}|{THERE}|0|{offset}|x".encode()
        self.reads.took(THERE, self.written[reader], [Input(KEY, offset, b"", value)])


def test_a_chain_of_transactions_is_no_cycle() -> None:
    history = Committed("a", "b", "c")
    history.read("b", 0, "a")
    history.read("c", 1, "b")
    history.read("c", 2, "a")
    history.reads.check_provenance()


def test_transactions_that_read_what_the_others_wrote_are_a_cycle() -> None:
    history = Committed("a", "b", "c", "d")
    history.read("d", 0, "a")
    history.read("b", 1, "a")
    history.read("c", 2, "b")
    history.read("a", 3, "c")
    with pytest.raises(RuleError, match=r"^I13: .*: (\w) before \w before \w before \1$"):
        history.reads.check_provenance()


def test_an_aborted_transaction_may_have_read_anything_and_nobody_may_have_read_it() -> None:
    history = Committed("a", "b", aborted="b")
    history.read("b", 0, "a")
    history.reads.check_provenance()
    history.read("a", 1, "b")
    with pytest.raises(RuleError, match=r"^I11: a is committed and read b'b\|"):
        history.reads.check_provenance()


def test_a_record_is_taken_once_by_a_group() -> None:
    history = Committed("a", "b", "c")
    inputs = {Offset(at): b"a|there|0|%d|x" % at for at in range(3)}
    history.read("b", 0, "a")
    history.read("b", 1, "a")
    history.reads.check_once((THERE, KEY), inputs, range(2))
    history.reads.check_once((BACK, KEY), inputs, range(0))
    with pytest.raises(RuleError, match=r"^I15: .* is at 3, nobody took b'a\|there\|0\|2\|x'"):
        history.reads.check_once((THERE, KEY), inputs, range(3))
    history.read("c", 1, "a")
    with pytest.raises(RuleError, match=r"^I15: .* offset 1 was taken by b and by c"):
        history.reads.check_once((THERE, KEY), inputs, range(2))
