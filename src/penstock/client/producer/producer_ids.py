"""The identity of an idempotent producer: a producer id, later the next epoch of it (I10).

    sender: a lane needs a newer identity ──ask──▶ InitProducer, until a broker gives one
                                                      └──▶ newest, on_newer ──▶ the lane adopts it

One call is in flight, however many lanes wait for it. A transactional producer does not ask here:
its coordinator gives the identity, and the sender only notes it as the newest.
"""

import asyncio
import logging
from collections.abc import Callable

from penstock.client.cluster.cluster import Cluster
from penstock.client.config import ProducerConfig
from penstock.client.tasks import BackgroundTasks
from penstock.core.types import NO_PRODUCER, ProducerId, ProducerIdentity
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.errors import error_from_wire

_log = logging.getLogger("penstock.client")


class ProducerIds:
    """Owned by the sender."""

    def __init__(
        self,
        cluster: Cluster,
        tasks: BackgroundTasks,
        *,
        on_newer: Callable[[], None],
        on_trouble: Callable[[PenstockError], None],
    ) -> None:
        """`on_newer` is called when `newest` is newer, `on_trouble` when an attempt failed."""
        assert isinstance(cluster.config, ProducerConfig)
        self.newest: ProducerIdentity | None = None
        self._config = cluster.config
        self._cluster = cluster
        self._tasks = tasks
        self._on_newer = on_newer
        self._on_trouble = on_trouble
        self._asking = False

    def ask(self) -> None:
        """Begins to ask for a newer identity, unless that is under way."""
        if not self._asking:
            self._asking = True
            self._tasks.spawn(self._init_producer(), "init-producer")

    async def _init_producer(self) -> None:
        """Gets a producer id, or the next epoch of ours; retries until it has one."""
        known = self.newest
        while True:
            request = pb.InitProducerRequest(
                cluster_id=self._cluster.view.cluster_id,
                producer_id=NO_PRODUCER if known is None else known.producer_id,
                producer_epoch=-1 if known is None else known.epoch,
            )
            try:
                answer = await self._cluster.ask(
                    lambda connection, timeout_s, request=request: connection.call(  # type: ignore[misc]  # mypy infers no type for a defaulted parameter
                        connection.broker.InitProducer, request, timeout_s
                    ),
                    self._config.request_timeout_ms / 1000,
                )
                if not answer.HasField("error"):
                    break
                raise error_from_wire(answer.error)
            except PenstockError as error:
                _log.warning("no producer id yet: %s", error)
                self._on_trouble(error)
                if error.code is ErrorCode.PRODUCER_FENCED:
                    known = None  # another producer uses our id now: get a new one
                await asyncio.sleep(self._config.retry_backoff_max_ms / 1000)
        self.newest = ProducerIdentity(ProducerId(answer.producer_id), answer.producer_epoch)
        self._asking = False
        self._on_newer()
