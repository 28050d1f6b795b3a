"""What compaction decides: when a log is worth a pass, which records stay, what batches become.

Belongs here: the plan of a pass (`plan`), the bounded map from keys to their newest offsets
(`keymap`), and rewriting batches (`rewrite`). All of it is plain data in, plain data out.

Never here: reading and writing logs, pauses and throttles, clocks, metrics: the broker's shell
(`penstock_broker.maintenance.compaction`) carries out these decisions.
"""
