"""Who calls in plaintext: counted by host, for as long as it matters, and never without end."""

from penstock_broker.serving.plaintext_clients import HOSTS_MAX, PlaintextClients

QUIET_S = 600.0


class Watched:
    """What a broker counts, at a time that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.clients = PlaintextClients(lambda: self.now_s)

    def call(self, host: str) -> None:
        with self.clients.streaming(host):
            pass

    @property
    def idle_ms(self) -> dict[str, int]:
        return {one.host: one.idle_ms for one in self.clients.describe().callers}


def test_a_host_is_quiet_from_the_end_of_its_last_call() -> None:
    watched = Watched()
    with watched.clients.streaming("10.0.0.1"):
        watched.now_s += 40
        watched.call("10.0.0.1")
        watched.now_s += 10
        (one,) = watched.clients.describe().callers
        assert (one.host, one.open, one.idle_ms) == ("10.0.0.1", 1, 0)
    watched.now_s += 7
    (one,) = watched.clients.describe().callers
    assert (one.open, one.idle_ms) == (0, 7_000)
    assert watched.clients.describe().watched_ms == 57_000


def test_the_last_to_call_comes_first() -> None:
    watched = Watched()
    for host in ("10.0.0.1", "10.0.0.3", "10.0.0.2"):
        watched.call(host)
        watched.now_s += 1
    assert list(watched.idle_ms) == ["10.0.0.2", "10.0.0.3", "10.0.0.1"]


def test_more_hosts_than_are_remembered_count_together_and_are_never_missed() -> None:
    watched = Watched()
    for number in range(HOSTS_MAX):
        watched.call(f"host-{number}")
        watched.now_s += 0.1
    watched.call("one-more")
    assert watched.idle_ms[""] == 0
    assert "one-more" not in watched.idle_ms
    assert len(watched.idle_ms) == HOSTS_MAX + 1
    watched.now_s += QUIET_S
    watched.call("much-later")
    assert "host-0" not in watched.idle_ms, "quiet for long enough not to matter"
    assert watched.idle_ms["much-later"] == 0
