"""Writing: from the user's records to batches that are stored in order, once.

    send ─▶ Accumulator: batches ─▶ Lane per partition (pure): order ─▶ Sender ─▶ ProduceLink

What belongs here: batching, numbering, retries, what becomes of a record. What never may: how a
transaction begins and ends; the room knows only which one a record is sent in
(`sending_in.py`), and `producer.py` puts `penstock.client.transaction` together with the rest.
"""
