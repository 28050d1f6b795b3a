"""What a scrape sees of replicas, and that it changes nothing: it runs in a thread of its own."""

from pathlib import Path

import pytest
from support.local_broker import local_broker, topic_info
from support.transactions import Transactor
from support.waiting import wait_until_async

from penstock.core.replication.local_log import LocalLog
from penstock.core.types import Offset, ReplicaKey, TopicId


async def test_a_scrape_in_the_middle_of_an_event_is_not_what_readers_are_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info())
        replicas = broker.process._replicas
        replica = replicas.by_key[ReplicaKey(TopicId("id-1"), 0)]
        raised = LocalLog.raise_high_watermark
        seen: list[int] = []

        def scraped(self: LocalLog, offset: Offset) -> bool:
            seen.append(broker.process.totals().high_watermarks)
            return raised(self, offset)

        monkeypatch.setattr(LocalLog, "raise_high_watermark", scraped)
        await Transactor(replicas, replica).send(None, 3)
        assert seen, "somebody looked before the high watermark moved"
        await wait_until_async(lambda: replica.machine.look().high_watermark == 3, what="it moved")
        assert replica.marks.high_watermark == 3
        assert broker.process.totals().high_watermarks == 3
