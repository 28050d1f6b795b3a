"""Producing: from the user's records to batches that are stored in order, once.

    send ─▶ Accumulator: batches ─▶ Lane per partition (pure): order ─▶ Sender ─▶ ProduceLink

Belongs here: batching, sequences, retries, deliveries. Never here: how a transaction begins and
ends. This package only knows which transaction a record is sent in (`sending_in.py`);
`producer.py` combines it with `penstock.client.transaction`. Start with `producer.py`.
"""
