"""A producer's transactions: one at a time, or as branches of a batch that many tasks write.

    handle, branches ─▶ manager ─▶ machine (pure); the manager carries out what it decides

Belongs here: beginning, committing, aborting and handing over, and the objects that users hold in
between. Never here: batches and their order (`penstock.client.producer`). Start with `contract.py`.
"""
