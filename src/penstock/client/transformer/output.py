"""A transformer's producer and its open transaction, one at a time.

    begin ──▶ producer (takes the id) ──▶ transaction, out ──▶ commit: offsets + output
                  ▲                                        └─▶ abort
                  └── dropped, where nobody confirmed the end: the next one ends what is open

Decides nothing; `transformer.py` says when.
"""

import logging
from collections.abc import Sequence

from penstock.client.config import ClientOptions
from penstock.client.consumer.consumer import AsyncConsumer
from penstock.client.producer.producer import AsyncProducer
from penstock.client.transaction.handle import AsyncTransaction
from penstock.client.transformer.config import TransformConfig
from penstock.client.transformer.out import AsyncOut
from penstock.errors import ClusterError, ErrorCode, PenstockError

_log = logging.getLogger("penstock.client")


class TransformOutput:
    """Of one transformer. One call at a time."""

    def __init__(
        self, bootstrap: str | Sequence[str], config: TransformConfig, transactional_id: str
    ) -> None:
        """Connects when the first transaction begins."""
        self._bootstrap = bootstrap
        self._config = config
        self._transactional_id = transactional_id
        self._transaction: AsyncTransaction | None = None
        self._timeout_s = config.transaction_timeout_ms / 1000
        self.producer: AsyncProducer | None = None
        """None: the next transaction initializes the id again."""
        self._out: AsyncOut | None = None

    @property
    def failure(self) -> ClusterError | None:
        """Why the last transaction cannot be committed."""
        return None if self._out is None else self._out.failure

    @property
    def unknown_topic(self) -> ClusterError | None:
        """The topic that it sent to and that does not exist."""
        return None if self._out is None else self._out.unknown_topic

    async def begin(self) -> AsyncOut:
        """Where to send: in the open transaction, or in a new one. If this fails, there is no
        producer left. Raises PenstockError."""
        if self._transaction is None or self._out is None:
            if self.producer is None:
                self.producer = self._new_producer()
            transaction = self.producer.transaction()
            try:
                await transaction.begin()
            except PenstockError:
                await self._drop_producer()
                raise
            self._transaction = transaction
            self._out = AsyncOut(self.producer, transaction)
        return self._out

    async def commit(self, consumer: AsyncConsumer) -> None:
        """Commits offsets first, so that records are stored in the meantime; the commit waits for
        those. Raises PenstockError: abort it."""
        await self.begin()
        assert self._transaction is not None, "it was begun"
        await self._transaction.commit_offsets(consumer)
        await self._transaction.commit(timeout_s=self._timeout_s)
        self._transaction = None

    async def abort(
        self, cause: PenstockError | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Aborts what is open. If that is not confirmed, a new producer has to do it."""
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            return
        ended = cause is not None and cause.code is ErrorCode.TRANSACTION_ABORTED
        if not transaction.over:
            limit_s = self._timeout_s if timeout_s is None else timeout_s
            ended = True
            try:
                await transaction.abort(timeout_s=limit_s)
            except PenstockError as error:
                _log.info("group %s: transaction not aborted: %s", self._config.group_id, error)
                ended = False
        if not ended:
            await self._drop_producer()

    async def close(self, timeout_s: float | None) -> None:
        """Ends the producer; see `AsyncProducer.close`."""
        if self.producer is not None:
            await self.producer.close(timeout_s)

    async def _drop_producer(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            await producer.close(0)

    def _new_producer(self) -> AsyncProducer:
        timeout_ms = self._config.transaction_timeout_ms
        return AsyncProducer(
            self._bootstrap,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=timeout_ms,
            client_id=self._config.client_id,
            **connecting(self._config),
        )


def connecting(config: TransformConfig) -> ClientOptions:
    """The settings that all clients have, as passed to the transformer."""
    names = ClientOptions.__annotations__
    return {name: getattr(config, name) for name in names}  # type: ignore[return-value]
