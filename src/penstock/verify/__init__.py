"""`penstock verify`: does this cluster keep its guarantees?

    run    workload on a cluster ──▶ history (JSON lines): sends, acknowledgements, reads
    check  histories ──▶ PASS, or which promise broke, with the records concerned

Start with `workload.py` for what is run, and `check.py` for what is concluded from it.

Belongs here: the recorded workload, the history format and the checker of histories. Never here:
knowledge of how brokers work; the checker sees only what a user can see, so that it can check any
cluster, in a test, in the demo or in production.
"""
