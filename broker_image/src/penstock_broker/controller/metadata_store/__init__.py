"""Where the controller keeps its documents: a few small texts that change by compare-and-swap.

Belongs here: the seam (`interface`), its local form (`local`, one RocksDB on this machine) and
the one for tests (`memory`). The Kubernetes form comes beside them and passes the same suite,
`tests/contracts/test_metadata_store.py`. Never here: what the documents mean
(`penstock.core.control.documents`), retries, decisions.
"""
