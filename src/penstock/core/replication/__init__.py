"""Replication of one partition, decided without I/O.

Belongs here: the machine of a partition replica (`machine`; its role: `roles`, `leader`,
`follower`), how a leader appends (`appending`, `transactions`), the state of a replica
(`local_log`, `epochs`, `producers`, `stable`, `isr`, `pending`), and its contract with the shell
that drives it (`contract`, `contract_leader`, `contract_follower`).

Never here: clocks, randomness, sockets, files, logging, awaiting; choosing leaders or placing
replicas (`penstock.core.control`); reading records for consumers (the shell does, up to
`Marks.high_watermark`). The same code runs under `tests/simulation`.
"""
