"""`penstock verify`: does this cluster keep its promises?

    run    workload on a cluster ──▶ history (JSON lines): sends, acknowledgements, reads
    check  histories ──▶ PASS, or which promise broke, with the records concerned

Belongs here: the recorded workload, the history format and the judge over histories. Never here:
knowledge of how brokers work; the judge sees only what a user could see, so that it can judge
any cluster, in a test, in the demo or in production.
"""
