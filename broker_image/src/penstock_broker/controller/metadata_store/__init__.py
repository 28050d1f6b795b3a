"""Where the controller keeps its documents: a few small texts that change by compare-and-swap.

Belongs here: the seams (`interface`) and their forms, which pass one suite
(`tests/contracts/test_metadata_store.py`). Stores that block: `local`, one RocksDB on this machine;
`kubernetes`, one ConfigMap per document (`kubernetes_objects`) and a Lease, through
`penstock.kubernetes`; `memory`, for tests. What the controller's loop awaits: `threaded`, such a
store in threads; `journaled`, a store that may be away, with the brokers (`journal_holders`) that
keep changes meanwhile. Never here: what the documents mean (`penstock.core.control.documents`),
decisions, retries of anything whose outcome is in doubt.
"""
