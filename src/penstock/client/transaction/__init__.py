"""A producer's transactions: one at a time, or as a branch of a batch that many tasks write.

    handle, branches ─▶ manager ─▶ machine (pure) ─▶ manager obeys: sender, coordinator

What belongs here: beginning, ending and handing over, and what a user holds meanwhile. What never
may: batches and their order, which are the producer's. Start reading at `contract.py`.
"""
