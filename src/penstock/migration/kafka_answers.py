"""What the answers of Kafka mean: wait, ask again, or an error that says what to do."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Final

import confluent_kafka as kafka

from penstock.errors import ClusterError, ErrorCode

TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.2

PASSING: Final = frozenset(
    {
        kafka.KafkaError._TRANSPORT,  # noqa: SLF001 - the names that the library gives them
        kafka.KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        kafka.KafkaError._TIMED_OUT,  # noqa: SLF001
        kafka.KafkaError._RESOLVE,  # noqa: SLF001
    }
)
"""librdkafka goes on by itself; `QUIET_S` ends what does not come back."""
_TRANSIENT: Final = frozenset(
    {
        kafka.KafkaError.NOT_COORDINATOR,
        kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
        kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
        kafka.KafkaError.LEADER_NOT_AVAILABLE,
    }
)
_OUT_OF_RANGE: Final = frozenset(
    {
        kafka.KafkaError.OFFSET_OUT_OF_RANGE,
        kafka.KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
    }
)


def asked(name: str, call: Callable[[], Any]) -> Any:
    """Again while the error says so: coordinators are loaded on first use, and a new topic has no
    leader at once."""
    ends_at = monotonic() + TIMEOUT_S
    while True:
        try:
            return call()
        except kafka.KafkaException as error:
            cause = error.args[0]
            passes = cause.retriable() or cause.code() in _TRANSIENT | PASSING
            if not passes or monotonic() > ends_at:
                raise failed(name, cause) from None
            sleep(RETRY_S)


def failed(name: str, error: Any) -> ClusterError:
    if error.code() in PASSING:
        text = f"cannot be reached ({error.str()}); check the address, and that it runs"
        return ClusterError(f"{name} {text}", ErrorCode.UNREACHABLE)
    if error.code() in _OUT_OF_RANGE:
        return ClusterError(f"{name}: {error.str()}", ErrorCode.OFFSET_OUT_OF_RANGE)
    return ClusterError(f"{name}: {error.name()}: {error.str()}", ErrorCode.INVALID_REQUEST)
