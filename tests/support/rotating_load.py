"""What is written to `RotatingPods` all the time, by an administrator, and read at the end."""

from support.background import PAUSE_S, Background
from support.rotating_pods import RotatingPods
from support.waiting import wait_until

from penstock.client import Consumer, Producer, TopicPartition

TOPIC = "t"


def login(pods: RotatingPods) -> dict[str, str]:
    """Of an administrator, for any client; the mounted trust is kept up to date."""
    token = pods.path / "admin-token"
    token.write_text(pods.token(pods.names.admin, pods.names.audience))
    return {"ca_file": str(pods.path / "client" / "ca.crt"), "token_file": str(token)}


class Producing(Background):
    """Sends numbers, one at a time. What was acknowledged, and what failed."""

    def __init__(self, pods: RotatingPods) -> None:
        super().__init__()
        self._pods, self._given = pods, login(pods)
        self.acknowledged: list[bytes] = []

    def goes_on(self) -> None:
        before = len(self.acknowledged)
        wait_until(
            lambda: self.failures or len(self.acknowledged) > before + 20, what="some more arrive"
        )
        assert self.failures == []

    def _run(self) -> None:
        with Producer(self._pods.bootstrap, **self._given) as producer:  # type: ignore[arg-type]
            number = 0
            while not self._stop.wait(PAUSE_S):
                value, number = f"{number}".encode(), number + 1
                try:
                    producer.send(TOPIC, value).result(60)
                    self.acknowledged.append(value)
                except Exception as error:  # noqa: BLE001 - the test reads it
                    self.failures.append(error)


def read_all(pods: RotatingPods, count: int, **given: str) -> list[bytes]:
    with Consumer(pods.bootstrap, auto_offset_reset="earliest", **given) as consumer:  # type: ignore[arg-type]
        consumer.assign([TopicPartition(TOPIC, 0)])
        records = iter(consumer)
        return [next(records).value or b"" for _ in range(count)]
