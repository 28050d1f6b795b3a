"""Stores the controller's documents: a few small texts, changed by compare-and-swap.

Belongs here: the seams (`interface`) and their implementations, which pass one suite
(`tests/contracts/test_metadata_store.py`). Blocking stores: `local`, one RocksDB on this machine;
`kubernetes`, one ConfigMap per document (`kubernetes_objects`) and a Lease, through
`penstock.kubernetes`; `memory`, for tests. Asynchronous ones, for the controller's loop:
`threaded`, a blocking store in threads; `journaled`, a store that can be unavailable, and the
brokers (`journal_holders`) that keep changes meanwhile. Never here: what the documents mean
(`penstock.core.control.documents`), decisions, retries of anything whose outcome is in doubt.
"""
