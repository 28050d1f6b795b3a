"""Where the controller keeps its documents: a few small texts that change by compare-and-swap.

Belongs here: the seam (`interface`) and its forms, which pass one suite
(`tests/contracts/test_metadata_store.py`): `local`, one RocksDB on this machine; `kubernetes`,
one ConfigMap per document (`kubernetes_objects`) and a Lease, through `penstock.kubernetes`;
`memory`, for tests. Never here: what the documents mean (`penstock.core.control.documents`),
decisions, retries of anything whose outcome is in doubt.
"""
